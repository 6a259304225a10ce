#!/usr/bin/env python3
"""End-to-end tests of linnet reproduce for tables 1 and 2 and the figures of their models, trained on a tiny MNIST.

    tests/reproduce_images_test.py BIN_DIR [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import reproduce_util
from cli_util import write_mnist
from reproduce_util import has, main


class Images(unittest.TestCase):
    """Tables 1 and 2, and the figures drawn from their models."""

    @classmethod
    def setUpClass(cls):
        if not has("linnet-train"):
            raise unittest.SkipTest("no linnet-train")
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.env = {name: value for name, value in os.environ.items() if name != "LINNET_DATA"}
        (cls.dir / "data").mkdir()
        write_mnist(cls.dir / "data" / "mnist")

    def reproduce(self, *arguments, code=0):
        done = subprocess.run([reproduce_util.BIN / "linnet", "reproduce", *map(str, arguments)], cwd=self.dir,
                              env=self.env, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def one_line(self, *arguments):
        """Expects a usage error and no output folder; returns stderr."""
        said = self.reproduce(*arguments, "--out", "nothing", code=2).stderr.strip().splitlines()
        self.assertFalse((self.dir / "nothing").exists())
        self.assertTrue(said[-1].startswith("linnet reproduce: "), said)
        return "\n".join(said)

    def test_a_table_and_the_figures_of_its_models(self):
        # Without --data, the data set is found in ./data/mnist.
        self.reproduce("table1", "--scale", "tiny", "--budget", 600, "--work", "work", "--out", "out")
        record = json.loads((self.dir / "out" / "table1.json").read_text())
        self.assertEqual([run["method"] for run in record["runs"]], ["softmax", "lsh-1", "lsh-4", "linear"])
        for run in record["runs"]:
            self.assertEqual(run["steps"], 50)
            self.assertTrue(0.3 < run["bits_per_dim"] < 4, run)  # a uniform distribution gives 8
        self.assertEqual([entry["method"] for entry in record["throughput"]],
                         [run["method"] for run in record["runs"]])
        self.assertEqual({entry["batch"] for entry in record["throughput"] if entry["method"] == "linear"}, {64})
        page = (self.dir / "out" / "table1.md").read_text()
        self.assertIn("linnet reproduce table1 --scale tiny --budget 600 --work work\n", page)
        self.assertIn("| 0.644 | 142.8 | 317 |", page)

        before = (self.dir / "work" / "lsh-4" / "state.safetensors").stat().st_mtime_ns
        drawn = self.reproduce("figure6", "--work", "work", "--out", "out", "--count", 2)
        self.assertIn("LSH-4: trained before", drawn.stderr)
        self.reproduce("figure7", "--work", "work", "--out", "out", "--completions", 1)
        self.reproduce("figure3", "--work", "work", "--out", "out", "--count", 2, "--completions", 1)
        self.assertIn("--scale tiny --budget 600 --work work", (self.dir / "out" / "figure3.md").read_text())
        self.reproduce("figure5", "--out", "out")
        self.assertEqual((self.dir / "work" / "lsh-4" / "state.safetensors").stat().st_mtime_ns, before)
        for name in ("figure6-lsh-4-samples", "figure6-real", "figure7-occluded", "figure7-softmax-completions",
                     "figure3-linear-samples", "figure3-original", "figure5-mnist"):
            self.assertTrue((self.dir / "out" / f"{name}.png").exists(), name)
        variety = json.loads((self.dir / "out" / "figure6.json").read_text())
        for entry in [*variety["methods"], variety["real"]]:
            self.assertTrue(0 < entry["nearest"] <= entry["pairs"] < 256, entry)

        # Options and data that differ from those of the existing trainings are refused.
        for other in (("--scale", "small"), ("--seed", 2), ("--no-pixel-above",), ("--steps", 60)):
            self.assertIn("--work", self.one_line("table1", "--work", "work", *other))
        self.assertIn("with --budget 600", self.one_line("table1", "--budget", "2h", "--work", "work"))
        write_mnist(self.dir / "others", images=13)
        self.assertIn("other data", self.one_line("figure3", "--data", "others", "--work", "work"))
        self.assertIn("ask for as many", self.one_line("figure6", "--count", 13, "--work", "work"))
        plan = json.loads((self.dir / "work" / "plan.json").read_text())
        (self.dir / "work-4").mkdir()
        for bad in ("{}", "[]", "{", '{"dataset": "mnist", "scale": 3}', json.dumps(dict(plan, scale="huge"))):
            (self.dir / "work-4" / "plan.json").write_text(bad)
            self.assertIn("plan.json", self.one_line("table1", "--work", "work-4"))
        self.reproduce("table1", "--from", "out/table1.json", "--out", "again")
        self.assertEqual((self.dir / "again" / "table1.json").read_text(),
                         (self.dir / "out" / "table1.json").read_text())
        self.assertIn("--from measures nothing, so --seed",
                      self.one_line("table1", "--from", "out/table1.json", "--seed", 3))

    def test_data_that_is_missing_or_broken(self):
        self.assertIn("'linnet data cifar10 --to data/cifar10/'", self.one_line("table2"))
        self.assertIn("nowhere", self.one_line("table1", "--data", "nowhere", "--work", "work-1"))
        write_mnist(self.dir / "broken")
        whole = self.dir / "broken" / "train-images-idx3-ubyte.gz"
        whole.write_bytes(whole.read_bytes()[:200])
        self.assertIn("train-images-idx3-ubyte.gz", self.one_line("table1", "--data", "broken", "--work", "work-2"))
        self.assertIn("is too little", self.one_line("table1", "--scale", "tiny", "--budget", 1, "--work", "work-3"))

    def test_ctrl_c_leaves_nothing_and_the_next_one_goes_on(self):
        command = [reproduce_util.BIN / "linnet", "reproduce", "table1", "--scale", "tiny", "--steps", "3000",
                   "--work", "work-5", "--out", "stopped"]
        running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=self.dir, env=self.env,
                                   start_new_session=True)
        until = time.monotonic() + 120
        while not list((self.dir / "work-5").glob("softmax/metrics.jsonl")) and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)  # to the whole group, as a terminal does
        said = running.communicate()[1]
        self.assertEqual(running.returncode, 130, said)
        self.assertIn("stopped at step", said)
        self.assertTrue((self.dir / "work-5" / "softmax" / "state.safetensors").exists())
        self.assertTrue(said.splitlines()[-1].startswith("linnet reproduce: table1: stopped"), said)
        self.assertFalse((self.dir / "stopped").exists())
        self.assertTrue((self.dir / "work-5" / "plan.json").exists())
        again = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=self.dir, env=self.env)
        for line in again.stderr:
            if "continuing the plan" in line:
                break
        else:
            self.fail("the second call did not continue the first")
        again.send_signal(signal.SIGINT)
        again.communicate()

    def test_records_that_are_none(self):
        for name in ("table1", "table2", "table4"):
            for broken in ({}, [], {"runs": []}, {"records": []}, {"runs": [{"method": "linear"}]}):
                (self.dir / "in.json").write_text(json.dumps(broken))
                self.one_line(name, "--from", "in.json")
        (self.dir / "tables").mkdir(exist_ok=True)
        self.assertIn("table1.json", self.one_line("figure5", "--tables", "tables"))
        (self.dir / "tables" / "table1.json").write_text("[]")
        self.assertIn("table1.json", self.one_line("figure5", "--tables", "tables"))

    def test_all_of_them(self):
        self.assertIn("outside the range", self.one_line("all", "--budget", "5m"))
        self.assertIn("--data", self.one_line("all", "--data", "nowhere"))



if __name__ == "__main__":
    main()
