#!/usr/bin/env python3
"""End-to-end tests of linnet reproduce, on synthetic records, and on a tiny benchmark if available.

    tests/reproduce_test.py BIN_DIR [unittest arguments]
"""

import gzip
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

BIN = pathlib.Path("build/release/bin").resolve()

FILES = ["figure1.md", "figure1.json", "figure1.png", "figure1.svg", "figure1-dark.png", "figure1-dark.svg"]
TIME = {"linear": lambda n: 0.002 * n, "softmax": lambda n: 1e-6 * n * n + 0.0005 * n,
        "softmax-plain": lambda n: 6e-6 * n * n, "lsh-1": lambda n: 0.006 * n, "lsh-4": lambda n: 0.02 * n}
MEMORY = {"linear": lambda n: 0.009 * n, "softmax": lambda n: 0.01 * n, "softmax-plain": lambda n: 1e-4 * n * n,
          "lsh-1": lambda n: 0.02 * n, "lsh-4": lambda n: 0.07 * n}


def records(methods=("linear", "softmax", "softmax-plain", "lsh-1", "lsh-4"), longest={"softmax-plain": 4096}):
    """Records in the format of linnet bench attention --json."""
    made = []
    for method in methods:
        lengths = [2 ** i for i in range(9, 15) if 2 ** i <= longest.get(method, 2 ** 14)]
        sizes = dict(method=method, heads=8, dim=32, value_dim=32, causal=True, threads=2, isa="AVX3", precision="f32",
                     batch=1)

        def add(what, value, limit, **identity):
            made.append({"name": f"attention/{method}/{what}", "value": value, "unit": "", "limit": limit,
                         "ratio": value / limit, "checked": True, **identity, **sizes})

        for what, of in (("time", TIME), ("memory", MEMORY)):
            for n in lengths:
                add(what, of[method](n), of[method](n) / 3, N=n)
        half = lengths[len(lengths) // 2:]
        for what, of in (("time", TIME), ("memory", MEMORY)):
            if len(half) < 2:
                continue
            slope = math.log(of[method](half[-1]) / of[method](half[0])) / math.log(half[-1] / half[0])
            add(what + "-exponent", slope, 1, N=lengths[-1], from_N=half[0])
        left = [{"N": 8192, "why": "a sample needs about 9 GB"}] if method in longest else []
        add("longest", lengths[-1], 2 ** 14, N=lengths[-1], from_N=512, tokens=65536, machine="A (machine), family 6",
            date="2026-11-21", left_out=left)
    return made


class Figure1(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        self.addCleanup(shutil.rmtree, self.dir)
        (self.dir / "out").mkdir()
        self.write("bench.json", records())

    def write(self, name, value):
        (self.dir / name).write_text(value if isinstance(value, str) else json.dumps(value))

    def reproduce(self, *arguments, env=None, program=None):
        return subprocess.run([program or BIN / "linnet", "reproduce", *map(str, arguments)], cwd=self.dir,
                              env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=600)

    def reproduce_ok(self, *arguments):
        done = self.reproduce(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
        return done.stdout

    def files(self):
        return {path: path.read_bytes() for path in self.dir.rglob("*") if path.is_file()}

    def refuses(self, arguments, *fragments, code=2, **how):
        before = self.files()
        done = self.reproduce(*arguments, **how)
        said = f"{arguments}: exit {done.returncode}, stdout {done.stdout!r}, stderr {done.stderr!r}"
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (code, "", 1), said)
        self.assertTrue(done.stderr.startswith("linnet"), said)
        for fragment in fragments:
            self.assertIn(str(fragment), done.stderr, said)
        self.assertEqual(self.files(), before, said)

    def test_help(self):
        self.assertIn("figure1", self.reproduce_ok("--help"))
        self.assertIn("Examples:\n  linnet reproduce figure1", self.reproduce_ok("figure1", "--help"))
        self.assertRegex(self.reproduce_ok("--version"), r"^linnet \d+\.\d+\.\d+\n$")

    def check_pictures(self, folder):
        for name in FILES[2:]:
            data = (folder / name).read_bytes()
            if name.endswith(".svg"):
                self.assertEqual(xml.etree.ElementTree.fromstring(data).get("width"), "1120px")
            else:
                self.assertEqual(struct.unpack(">II", data[16:24]), (2240, 880))
        self.assertNotEqual((folder / FILES[3]).read_bytes(), (folder / FILES[5]).read_bytes())

    def test_from_records(self):
        self.assertEqual(self.reproduce_ok("figure1", "--from", "bench.json", "--out", "out"),
                         "".join(f"wrote out/{name}\n" for name in FILES))
        self.assertEqual(sorted(os.listdir(self.dir / "out")), sorted(FILES))
        self.check_pictures(self.dir / "out")
        self.assertEqual(json.loads((self.dir / "out/figure1.json").read_text()), records())
        page = (self.dir / "out/figure1.md").read_text()
        for part in ("linnet reproduce figure1 --from", "A (machine), family 6, 2 threads", "2026-11-21",
                     "| N | linear | softmax | softmax-plain | lsh-1 | lsh-4 |",
                     "| 512 | 1.02 | 0.518 | 1.57 | 3.07 | 10.2 |", "| 8,192 | 16.4 | 71.2 | – | 49.2 | 164 |",
                     "| exponent of N | 1.00 | 1.94 | 2.00 | 1.00 | 1.00 |",
                     "`softmax`: time N^1.94 (agrees), memory N^1.00 (differs)",
                     "faster in 20 of 22 comparisons",
                     "`softmax` at 2 of 6 lengths (0.506 to 0.762 times linear's)",
                     "at N = 16,384 `lsh-1` 98.3 ms, `lsh-4` 328 ms (3.33x)",
                     "`softmax-plain` 4,096 (at 8,192: a sample needs about 9 GB)"):
            self.assertIn(part, page)
        # Its own record gives the same page.
        first = self.files()
        said = json.loads(self.reproduce_ok("figure1", "--from", "out/figure1.json", "--out", "out", "--json"))
        self.assertEqual(said["out"], [f"out/{name}" for name in FILES])
        self.assertEqual(self.files(), first)

    def test_little_to_show(self):
        self.write("few.json", records(["linear"], {"linear": 512}))
        self.reproduce_ok("figure1", "--from", "few.json")
        self.assertIn("not fitted", (self.dir / "figure1.md").read_text())
        self.check_pictures(self.dir)

    def test_what_a_file_holds_stays_harmless(self):
        odd = records(["linear"])
        odd[-1]["machine"] = "<script>|`\n"
        self.write("odd.json", odd)
        self.reproduce_ok("figure1", "--from", "odd.json")
        self.assertIn("?script????, 2 threads", (self.dir / "figure1.md").read_text())

    def test_bad_input(self):
        def changed(**fields):
            self.write("bad.json", [{**records()[0], **fields}, *records()[1:]])
            return ["figure1", "--from", "bad.json"]

        for fields in (dict(value=0), dict(value=-1), dict(value="much"), dict(value=None), dict(N=1e300),
                       dict(name="attention"), dict(name="step"), dict(name="attention/linear/mood"),
                       dict(checked=False), dict(heads="8"), dict(ratio=-1), dict(N=[1])):
            self.refuses(changed(**fields), "bad.json", "give the figure1.json that 'linnet reproduce figure1' wrote")
        memoryless = [record for record in records() if not record["name"].endswith("/memory")]
        for text, fragment in (("{", "valid JSON"), ("{}", "field"), ("[]", "no measurement"), ("[1]", "field"),
                               (json.dumps(memoryless), "no memory"), ("[" * 100 + "]" * 100, "deep")):
            self.write("bad.json", text)
            self.refuses(["figure1", "--from", "bad.json"], "bad.json", fragment)
        (self.dir / "out/figure1.svg").mkdir()
        for arguments, fragment in (([], "figure1"), (["figure99"], "figure9"), (["figure1", "--from", "no"], "no"),
                                    (["figure1", "--what"], "--what"), (["figure1", "--max-n", "1"], "--max-n"),
                                    (["figure1", "--from", "bench.json", "--max-n", "512"], "--max-n"),
                                    (["figure1", "--from", "bench.json", "--out", "bench.json/at/all"], "bench.json/at/all"),
                                    (["figure1", "--from", "bench.json", "--out", "out"], "figure1.svg")):
            self.refuses(arguments, fragment)

    def test_without_the_programs_beside_it(self):
        folder = self.dir / "bin"
        folder.mkdir()
        shutil.copy(BIN / "linnet", folder)
        self.refuses(["figure1"], folder / "linnet-reproduce", "cmake --build", program=folder / "linnet",
                     env={"PATH": "/nowhere"})
        shutil.copy(BIN / "linnet-reproduce", folder)
        before = self.files()
        done = self.reproduce("figure1", program=folder / "linnet", env={"PATH": "/nowhere"})  # no linnet-bench-torch
        self.assertEqual((done.returncode, self.files()), (2, before))
        self.assertIn("linnet-bench-torch", done.stderr)

    def test_measured(self):
        if not (BIN / "linnet-bench-torch").exists():
            self.skipTest("no linnet-bench-torch here")
        done = self.reproduce("figure1", "--max-n", "512", "--methods", "linear,softmax", "--seconds", "0",
                              "--threads", "1", "--out", "out")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.dir / "out/figure1.md").read_text()
        self.assertIn("linnet reproduce figure1 --max-n 512 --methods linear,softmax", page)
        self.assertRegex(page, r"\| 512 \| [\d.,]+ \| [\d.,]+ \|")
        self.check_pictures(self.dir / "out")
        before = self.files()
        done = self.reproduce("figure1", "--methods", "magic", "--out", "out")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("magic", done.stderr)
        self.assertEqual(self.files(), before)


TABLE5 = ["table5.md", "table5.json", "table5.png", "table5.svg", "table5-dark.png", "table5-dark.svg"]


def generated(dataset="mnist", attention="causal-linear", stateless=False, **changed):
    """A record in the format of linnet bench generate --json."""
    record = {"name": "generate", "value": 500.0, "unit": "ms/image", "limit": 400.0, "ratio": 1.25, "checked": True,
              "model": dataset + " (random)", "attention": attention, "stateless": stateless,
              "N": 784 if dataset == "mnist" else 3072, "batch": 1, "precision": "f32", "threads": 2, "isa": "AVX3",
              "state_bytes": 549_000, "memory_growth_bytes": 0, "machine": "A (machine) | <b>", "date": "2026-11-21"}
    if stateless:
        record.update(lengths=[1, 400, 783], us_at_lengths=[700.0, 40_000.0, 80_000.0])
    else:
        slope = 100 if attention == "full" else 0
        record.update(us_by_eighths=[640.0 + slope * i for i in range(8)])
    return [{**record, **changed}]


class Table5(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        self.addCleanup(shutil.rmtree, self.dir)
        (self.dir / "out").mkdir()

    def run_on(self, records, *arguments):
        record = {"command": "linnet reproduce table5 --threads 2", "records": records} if records is not None else {}
        (self.dir / "records.json").write_text(json.dumps(record))
        return subprocess.run([BIN / "linnet", "reproduce", "table5", "--from", self.dir / "records.json", "--out",
                               self.dir / "out", *arguments], capture_output=True, text=True)

    def test_a_page_with_pictures(self):
        records = (generated(attention="full", stateless=True, value=50_000.0) + generated(attention="full", value=750.0)
                   + generated() + generated("cifar10"))
        result = self.run_on(records)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(path.name for path in (self.dir / "out").iterdir()), sorted(TABLE5))
        page = (self.dir / "out" / "table5.md").read_text()
        self.assertIn("| softmax | 50.0 | 100 |", page)  # 50 s, a hundred times linear's 0.5 s
        self.assertIn("| stateful softmax | 0.750 | 1.50 | 2.09 |", page)  # 1,340 us over 640
        self.assertIn("| linear | 0.500 | 1.00 | 1.00 |", page)
        self.assertIn("| stateful softmax | – |", page)  # for CIFAR-10, which has linear only
        self.assertIn("A (machine) ? ?b?", page)
        self.assertIn("linnet reproduce table5 --threads 2\n", page)
        for name in ("table5.svg", "table5-dark.svg"):
            text = "".join(xml.etree.ElementTree.parse(self.dir / "out" / name).getroot().itertext())
            self.assertIsInstance(text, str)
        self.assertEqual((self.dir / "out" / "table5.png").read_bytes()[:4], b"\x89PNG")

    def test_refuses_what_is_no_such_record(self):
        for records, says in (([], "no measurement"), (None, "lacks a field"), (3, "another type"), (generated(checked=False), "not of this table"),
                              (generated(batch=64), "not of this table"),
                              (generated("other"), "not of this table"),
                              (generated(value=-1.0), "'value'"), (generated(attention="reformer"), "not of this table"), (generated(us_by_eighths=[]), "no times"),
                              (generated(us_by_eighths=[0.0, 1.0]), "us_by_eighths"), (generated(N=1), "'N'"),
                              (generated(threads=1e300), "'threads'"), (generated(value=0), "'value'"),
                              (generated() + generated(), "two records of linear, MNIST"),
                              (generated() + generated("cifar10", precision="int8"), "different"),
                              (generated(machine=3), "another type"), ([{"name": "generate"}], "lacks a field")):
            result = self.run_on(records)
            self.assertEqual(result.returncode, 2, records)
            self.assertIn(says, result.stderr)
            self.assertEqual(len(result.stderr.strip().splitlines()), 1)
            self.assertEqual(list((self.dir / "out").iterdir()), [])
        result = self.run_on(generated(), "--precision", "int8")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--from measures nothing", result.stderr)

    def test_measures(self):
        if not (BIN / "linnet-bench").exists():  # here, since BIN is set after the class
            self.skipTest("no linnet-bench")
        result = subprocess.run([BIN / "linnet", "reproduce", "table5", "--dataset", "mnist", "--precision", "int8",
                                 "--out", self.dir / "out", "--json"], capture_output=True, text=True, cwd=self.dir)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(json.loads(result.stdout)["out"]), 6)
        page = (self.dir / "out" / "table5.md").read_text()
        self.assertIn("linnet reproduce table5 --precision int8 --dataset mnist", page)


class Table3(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        self.addCleanup(shutil.rmtree, self.dir)
        (self.dir / "out").mkdir()

    def reproduce(self, *arguments):
        return subprocess.run([BIN / "linnet", "reproduce", "table3", "--out", self.dir / "out", *map(str, arguments)],
                              capture_output=True, text=True)

    def result(self):
        runs = [{"method": method, "seed": seed, "steps": 100, "epochs": 2.0, "seconds": 60.0, "peak_memory": 1e9,
                 "parameters": 4_000_000, "validation": 0.3, "test": test, "real_time_factor": 0.004,
                 "curve": [[50, 30.0, 0.6], [100, 60.0, 0.3]]}
                for method, seed, test in (("linear", 1, 0.30), ("linear", 2, 0.32), ("lstm", 1, 0.25))]
        lengths = [{"method": method, "seconds": seconds, "value": value, "threads": 2, "loss": seconds / 100,
                    "machine": "Another machine", "date": "2026-11-22"}
                   for method, seconds, value in (("linear", 8, 10.0), ("linear", 16, 10.0), ("full", 16, 12.5))]
        return {"machine": "A machine", "date": "2026-11-21", "minutes": 1.0, "precision": "fp32", "threads": 2,
                "runs": runs, "lengths": lengths}

    def test_a_page_with_pictures(self):
        (self.dir / "in.json").write_text(json.dumps(self.result()))
        done = self.reproduce("--from", self.dir / "in.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.dir / "out" / "table3.md").read_text()
        self.assertIn("| linear | 31.00 (2 seeds, 2.00 apart) |", page)
        self.assertIn("| Bi-LSTM | 25.00 |", page)
        self.assertNotIn("| LSH-4 | ", page.split("## The length")[0])  # no such run exists
        self.assertIn("| 16 | – | 12.5 | – | 10.0 |", page)
        self.assertIn("| CTC loss, in addition | – | 0.160 to 0.160 | – | 0.080 to 0.160 |", page)
        self.assertIn("Another machine", page)
        self.assertEqual(len(list((self.dir / "out").iterdir())), 10)

    def test_refuses_what_is_no_result(self):
        whole = self.result()
        for broken, says in ((dict(whole, runs=[]), "no run"), ({}, "lacks a field"), ([], "lacks a field"),
                             (dict(whole, lengths=[{}]), "lacks a field"), (dict(whole, machine=3), "another type")):
            (self.dir / "in.json").write_text(json.dumps(broken))
            done = self.reproduce("--from", self.dir / "in.json")
            self.assertEqual(done.returncode, 2, broken)
            self.assertIn(says, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1)
            self.assertEqual(list((self.dir / "out").iterdir()), [])
        done = self.reproduce()
        self.assertEqual(done.returncode, 2)
        self.assertIn("--data", done.stderr)

    def test_other_lengths_of_a_benchmark(self):
        whole = self.result()
        (self.dir / "in.json").write_text(json.dumps(whole))
        (self.dir / "lengths.json").write_text(json.dumps([dict(whole["lengths"][0], value=7.0)]))
        done = self.reproduce("--from", self.dir / "in.json", "--lengths", self.dir / "lengths.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| 8 | – | – | – | 7.00 |", (self.dir / "out" / "table3.md").read_text())
        self.assertEqual(len(json.loads((self.dir / "out" / "table3.json").read_text())["lengths"]), 1)

    def test_the_benchmark_checks_and_times(self):
        if not (BIN / "linnet-bench-torch").exists():
            self.skipTest("no linnet-bench-torch")
        done = subprocess.run([BIN / "linnet", "bench", "speech", "--to", "8", "--total", "8", "--json"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([record["method"] for record in json.loads(done.stdout)],
                         ["linear", "full", "reformer", "lstm"])


class Figure2(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        self.addCleanup(shutil.rmtree, self.dir)

    def reproduce(self, *arguments):
        return subprocess.run([BIN / "linnet", "reproduce", "figure2", "--out", self.dir / "out", "--work",
                               self.dir / "work", *map(str, arguments)], capture_output=True, text=True)

    def test_trains_goes_on_and_writes(self):
        if not (BIN / "linnet-train").exists():
            self.skipTest("no linnet-train")
        arguments = ("--max-length", 14, "--steps", 100)
        done = self.reproduce(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(json.loads(done.stdout)["out"]), 6)
        result = json.loads((self.dir / "out" / "figure2.json").read_text())
        self.assertEqual([run["method"] for run in result["runs"]], ["softmax", "lsh-4", "linear"])
        for run in result["runs"]:
            self.assertEqual(run["curve"][-1][0], 100)
            self.assertLess(run["curve"][-1][1], 2.25)  # nats; chance over 11 tokens is 2.4
        page = (self.dir / "out" / "figure2.md").read_text()
        self.assertIn("linnet reproduce figure2 --steps 100 --max-length 14", page)
        again = self.reproduce(*arguments)  # all results exist already
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(json.loads((self.dir / "out" / "figure2.json").read_text())["runs"], result["runs"])
        other = self.reproduce("--max-length", 15, "--steps", 100)
        self.assertEqual(other.returncode, 2)
        self.assertIn("--work", other.stderr)
        short = self.reproduce(*arguments, "--budget", "1")
        self.assertEqual(short.returncode, 2)
        self.assertIn("too little", short.stderr)
        whole = self.reproduce("--from", self.dir / "out" / "figure2.json")
        self.assertEqual(whole.returncode, 0, whole.stderr)

    def test_refuses_what_is_no_result(self):
        for broken in ({}, [], {"runs": []}, {"runs": [{"method": "linear"}]}, {"runs": [{"method": "linear", "curve": []}]}):
            (self.dir / "in.json").write_text(json.dumps(broken))
            done = self.reproduce("--from", self.dir / "in.json")
            self.assertEqual(done.returncode, 2, broken)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1)
            self.assertFalse((self.dir / "out").exists())


def write_mnist(folder, images=12):
    """Writes images with a bright patch in MNIST's file format."""
    folder.mkdir(parents=True)
    for split, seed in (("train", 1), ("t10k", 2)):
        drawn = random.Random(seed)
        pixels = bytearray(images * 784)
        for i in range(images):
            for _ in range(120):
                pixels[i * 784 + drawn.randrange(200, 600)] = drawn.randrange(256)
        for kind, head, body in (("images-idx3", struct.pack(">HBBIII", 0, 8, 3, images, 28, 28), pixels),
                                 ("labels-idx1", struct.pack(">HBBI", 0, 8, 1, images), bytes(images))):
            (folder / f"{split}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + bytes(body)))


class Images(unittest.TestCase):
    """Tables 1 and 2, and the figures drawn from their models."""

    @classmethod
    def setUpClass(cls):
        if not (BIN / "linnet-train").exists():
            raise unittest.SkipTest("no linnet-train")
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.env = {name: value for name, value in os.environ.items() if name != "LINNET_DATA"}
        write_mnist(cls.dir / "data" / "mnist")

    def reproduce(self, *arguments, code=0):
        done = subprocess.run([BIN / "linnet", "reproduce", *map(str, arguments)], capture_output=True, text=True,
                              cwd=self.dir, env=self.env)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def one_line(self, *arguments):
        """Expects a usage error and no files left; returns stderr."""
        said = self.reproduce(*arguments, "--out", "nothing", code=2).stderr.strip().splitlines()
        self.assertFalse((self.dir / "nothing").exists())
        self.assertTrue(said[-1].startswith("linnet reproduce: "), said)
        return "\n".join(said)

    def test_a_table_and_the_figures_of_its_models(self):
        # Data is found in ./data/mnist.
        self.reproduce("table1", "--scale", "tiny", "--work", "work", "--out", "out")
        record = json.loads((self.dir / "out" / "table1.json").read_text())
        self.assertEqual([run["method"] for run in record["runs"]], ["softmax", "lsh-1", "lsh-4", "linear"])
        for run in record["runs"]:
            self.assertEqual(run["steps"], 50)
            self.assertTrue(0.3 < run["bits_per_dim"] < 4, run)  # 8 by chance
        self.assertEqual([entry["method"] for entry in record["throughput"]],
                         [run["method"] for run in record["runs"]])
        self.assertEqual({entry["batch"] for entry in record["throughput"] if entry["method"] == "linear"}, {64})
        page = (self.dir / "out" / "table1.md").read_text()
        self.assertIn("linnet reproduce table1 --scale tiny --work work\n", page)
        self.assertIn("| 0.644 | 142.8 | 317 |", page)

        before = (self.dir / "work" / "lsh-4" / "state.safetensors").stat().st_mtime_ns
        drawn = self.reproduce("figure6", "--work", "work", "--out", "out", "--count", 2)
        self.assertIn("LSH-4: trained before", drawn.stderr)
        self.reproduce("figure7", "--work", "work", "--out", "out", "--completions", 1)
        self.reproduce("figure3", "--work", "work", "--out", "out", "--count", 2, "--completions", 1)
        self.reproduce("figure5", "--out", "out")
        self.assertEqual((self.dir / "work" / "lsh-4" / "state.safetensors").stat().st_mtime_ns, before)
        for name in ("figure6-lsh-4-samples", "figure6-real", "figure7-occluded", "figure7-softmax-completions",
                     "figure3-linear-samples", "figure3-original", "figure5-mnist"):
            self.assertTrue((self.dir / "out" / f"{name}.png").exists(), name)
        variety = json.loads((self.dir / "out" / "figure6.json").read_text())
        for entry in [*variety["methods"], variety["real"]]:
            self.assertTrue(0 < entry["nearest"] <= entry["pairs"] < 256, entry)

        # Other options than those of the existing trainings are refused.
        for other in (("--scale", "small"), ("--seed", 2), ("--no-pixel-above",), ("--steps", 60)):
            self.assertIn("--work", self.one_line("table1", "--work", "work", *other))
        self.reproduce("table1", "--from", "out/table1.json", "--out", "again")
        self.assertEqual((self.dir / "again" / "table1.json").read_text(), (self.dir / "out" / "table1.json").read_text())
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
        (self.dir / "work-4").mkdir()
        self.reproduce("figure3", "--scale", "tiny", "--budget", 600, "--work", "work-6", "--out", "out-6", "--count", 2,
                       "--completions", 1)
        whole = json.loads((self.dir / "work-6" / "plan.json").read_text())
        self.assertIn("--scale tiny --budget 600 --work work-6", (self.dir / "out-6" / "figure3.md").read_text())
        self.assertIn("with --budget 600", self.one_line("table1", "--budget", "2h", "--work", "work-6"))
        write_mnist(self.dir / "others", images=13)
        self.assertIn("other data", self.one_line("figure3", "--data", "others", "--work", "work-6"))
        self.assertIn("ask for as many", self.one_line("figure6", "--count", 13, "--work", "work-6"))
        for plan in ("{}", "[]", "{", '{"dataset": "mnist", "scale": 3}', json.dumps(dict(whole, scale="huge"))):
            (self.dir / "work-4" / "plan.json").write_text(plan)
            self.assertIn("plan.json", self.one_line("table1", "--work", "work-4"))

    def test_ctrl_c_leaves_nothing_and_the_next_one_goes_on(self):
        command = [BIN / "linnet", "reproduce", "table1", "--scale", "tiny", "--steps", "3000", "--work", "work-5", "--out",
                   "stopped"]
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
            if "going on with what was planned" in line:
                break
        else:
            self.fail("it did not go on")
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
        self.assertIn("too little", self.one_line("all", "--budget", "5m"))
        self.assertIn("--data", self.one_line("all", "--data", "nowhere"))


class All(unittest.TestCase):
    """`reproduce all` with a fake 'linnet' beside the program that records its arguments."""
    STAND_IN = """#!/usr/bin/env python3
import os, pathlib, signal, sys, time
arguments = sys.argv[2:]
name, value = arguments[0], lambda flag: arguments[arguments.index(flag) + 1]
with open("calls", "a") as calls:
    print(*arguments, file=calls)
def stop(*_):
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
if os.environ.get("FAILS") == name:
    sys.exit("it fails")
if os.environ.get("HANGS") == name:
    pathlib.Path("hangs").touch()
    time.sleep(60)
pathlib.Path(value("--out")).mkdir(exist_ok=True)
(pathlib.Path(value("--out")) / (name + ".json")).write_text("{}")
print("wrote", name)
"""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        self.addCleanup(shutil.rmtree, self.dir)
        (self.dir / "data").mkdir()
        shutil.copy(BIN / "linnet-reproduce", self.dir)
        (self.dir / "linnet").write_text(self.STAND_IN)
        (self.dir / "linnet").chmod(0o755)

    def start(self, **env):
        return subprocess.Popen([self.dir / "linnet-reproduce", "all", "--budget", "1h", "--out", "out"], cwd=self.dir,
                                env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def all(self, **env):
        process = self.start(**env)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def calls(self):
        path = self.dir / "calls"
        calls = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return calls

    def kept(self):
        return json.loads((self.dir / "runs" / "all.json").read_text())

    def test_every_part_once(self):
        code, out, err = self.all()
        self.assertEqual(code, 0, err)
        calls = self.calls()
        names = [call[0] for call in calls]
        self.assertEqual(sorted(names), sorted([f"table{t}" for t in range(1, 6)] + [f"figure{f}" for f in range(1, 10)]))
        self.assertEqual(out.splitlines(), [f"wrote {name}" for name in names])
        budgets = [int(call[call.index("--budget") + 1]) for call in calls if "--budget" in call]
        self.assertEqual(len(budgets), 3)  # table 3 takes minutes per training
        self.assertLess(sum(budgets), 3600)
        # Figures use the models of their table.
        works = {call[0]: call[call.index("--work") + 1] for call in calls if "--work" in call}
        self.assertEqual(works["figure6"], works["table1"])
        self.assertEqual(works["figure9"], works["table2"])
        # A second call redraws only the figures from other experiments' records.
        code, _, err = self.all()
        self.assertEqual(code, 0, err)
        self.assertEqual([call[0] for call in self.calls()], ["figure5"])

    def test_what_fails_is_named_and_done_alone(self):
        code, _, err = self.all(FAILS="table2")
        self.assertEqual(code, 1)
        self.assertIn("not reproduced: table2, figure4, figure8, figure9;", err.splitlines()[-1])
        self.calls()
        code, _, err = self.all()
        self.assertEqual(code, 0, err)
        self.assertEqual([call[0] for call in self.calls()], ["table2", "figure4", "figure5", "figure8", "figure9"])

    def test_the_clock_goes_on_where_it_was_stopped(self):
        process = self.start(HANGS="table4")
        while not (self.dir / "hangs").exists():
            self.assertIsNone(process.poll(), "it ended")
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("stopped; the same command resumes", err.splitlines()[-1])
        kept = self.kept()
        self.assertEqual(kept["done"], ["table1", "table2", "table3"])
        self.assertGreater(kept["spent"], 0)
        self.calls()
        # The budget is used up: the part in progress is finished, the others are left out and get a new
        # budget in the next call.
        (self.dir / "runs" / "all.json").write_text(json.dumps(dict(kept, spent=3601)))
        code, _, err = self.all()
        self.assertEqual(code, 1)
        self.assertIn("table5: left out, since the budget is used up", err)
        self.assertEqual([call[0] for call in self.calls()], ["table4", "figure5"])
        self.assertEqual(self.kept()["spent"], 0)
        code, _, err = self.all()
        self.assertEqual(code, 0, err)
        self.assertEqual(len(self.calls()), 10)

    def test_records_of_earlier_calls(self):
        path = self.dir / "runs" / "all.json"
        path.parent.mkdir()
        whole = {"budget": 3600.0, "precision": "fp32", "spent": 10.0, "begun": "", "done": []}
        for broken in (dict(whole, spent=-1), dict(whole, spent="x"), dict(whole, begun=3), dict(whole, done=3),
                       dict(whole, budget=7200.0), [], "{"):
            path.write_text(broken if isinstance(broken, str) else json.dumps(broken))
            code, _, err = self.all()
            self.assertEqual(code, 2, broken)
            self.assertEqual(len(err.splitlines()), 1, err)
            self.assertIn("runs/all.json", err)
            self.assertEqual(self.calls(), [])
        (self.dir / "out").mkdir()
        (self.dir / "out" / "table1.json").write_text("{}")
        path.write_text(json.dumps({"budget": 3600.0, "precision": "fp32", "done": ["table1"]}))  # no "spent"
        code, _, err = self.all()
        self.assertEqual(code, 0, err)
        self.assertEqual(len(self.calls()), 13)


class Kept(unittest.TestCase):
    """Measurements of a stopped experiment are not repeated. The benchmark is a stand-in that fails for one method."""
    STAND_IN = """#!/usr/bin/env python3
import json, os, sys
method = sys.argv[sys.argv.index("--methods") + 1]
with open("calls", "a") as calls:
    print(method, file=calls)
if os.environ.get("FAILS") == method:
    sys.exit("it fails")
print(json.dumps([record for record in json.load(open("bench.json")) if record["method"] == method]))
"""

    def test_the_next_call_goes_on(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        self.addCleanup(shutil.rmtree, folder)
        shutil.copy(BIN / "linnet-reproduce", folder)
        (folder / "linnet").write_text(self.STAND_IN)
        (folder / "linnet").chmod(0o755)
        (folder / "bench.json").write_text(json.dumps(records()))

        def run(**env):
            (folder / "calls").unlink(missing_ok=True)
            done = subprocess.run([folder / "linnet-reproduce", "figure1", "--methods", "linear,softmax,lsh-1", "--out", "out"],
                                  cwd=folder, env={**os.environ, **env}, capture_output=True, text=True)
            return done.returncode, (folder / "calls").read_text().split(), done.stderr

        code, calls, said = run(FAILS="softmax")
        self.assertEqual((code, calls), (1, ["linear", "softmax"]), said)
        self.assertFalse((folder / "out").exists())
        code, calls, said = run()
        self.assertEqual((code, calls), (0, ["softmax", "lsh-1"]), said)
        self.assertIn("linear: measured before", said)
        self.assertIn("| N | linear | softmax | lsh-1 |", (folder / "out" / "figure1.md").read_text())
        # A finished experiment leaves nothing behind, and measures everything again.
        self.assertFalse((folder / "runs").exists())
        self.assertEqual(run()[1], ["linear", "softmax", "lsh-1"])


class Trained(unittest.TestCase):
    """Table 3 with a stand-in for 'linnet' that trains nothing."""
    STAND_IN = """#!/usr/bin/env python3
import json, os, pathlib, sys
verb, arguments = sys.argv[1], sys.argv[2:]
value = lambda flag: arguments[arguments.index(flag) + 1]
with open("calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
if verb == "train":
    run = pathlib.Path(value("--out"))
    run.mkdir(parents=True, exist_ok=True)
    if os.environ.get("STOPS") == run.name:
        sys.exit(130)
    steps = int(value("--steps"))
    metrics = [{"step": step, "seconds": step * 0.5, "lr": 1e-3, "peak_memory": 1e6 + step} for step in range(10, steps + 1, 10)]
    metrics.append({"step": steps, "seconds": steps * 0.5, "validation_phone_error_rate": 0.25})
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + chr(10) for record in metrics))
    (run / "config.json").write_text(json.dumps({"steps": steps}))
    for file in ("state.safetensors", "model.safetensors"):
        (run / file).touch()
elif verb == "info":
    steps = json.loads((pathlib.Path(arguments[0]).parent / "config.json").read_text())["steps"]
    print(json.dumps({"training": {"steps": steps, "epochs": 1.5}, "parameters": 1000}))
elif verb == "eval":
    print(json.dumps({"phone_error_rate": 0.3, "left_out": 0, "real_time_factor": 0.01}))
else:
    print(json.dumps([{"method": "linear", "seconds": 8.0, "value": 2.0, "loss": 0.5, "threads": 2,
                       "machine": "A machine", "date": "2026-11-23"}]))
"""

    def test_plans_trains_and_goes_on(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        self.addCleanup(shutil.rmtree, folder)
        shutil.copy(BIN / "linnet-reproduce", folder)
        (folder / "linnet").write_text(self.STAND_IN)
        (folder / "linnet").chmod(0o755)

        def run(*more, code=0, **env):
            (folder / "calls").unlink(missing_ok=True)
            done = subprocess.run([folder / "linnet-reproduce", "table3", "--data", "an4", "--minutes", "1", "--seeds", "2",
                                   "--precision", "bf16", "--out", "out", *more], cwd=folder, env={**os.environ, **env},
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stderr)
            calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
            return [call for call in calls if call.startswith("train")], done.stderr

        calls, said = run(code=130, STOPS="full-1")
        self.assertIn("table3: stopped; nothing is written", said.splitlines()[-1])
        # Four timings of an update (half a second), before the trainings of a minute.
        self.assertEqual([call.split("--out ")[1] for call in calls],
                         [f"runs/table3/{name}" for name in ("update-lstm", "update-full", "update-reformer", "update-linear",
                                                             "lstm-1", "lstm-2", "full-1")])
        calls, said = run()
        self.assertIn("Bi-LSTM, seed 2: trained before, 120 updates", said)
        self.assertEqual([call.split("--out ")[1] for call in calls],
                         [f"runs/table3/{name}" for name in ("full-1", "reformer-1", "linear-1", "linear-2")])
        self.assertIn("--attention linear --data an4 --seed 2 --precision bf16 --checkpoint-every 200 --steps 120", calls[-1])
        record = json.loads((folder / "out" / "table3.json").read_text())
        self.assertEqual([(run["method"], run["seed"]) for run in record["runs"]],
                         [("lstm", 1), ("lstm", 2), ("full", 1), ("reformer", 1), ("linear", 1), ("linear", 2)])
        for made in record["runs"]:
            self.assertEqual((made["steps"], made["seconds"], made["peak_memory"], made["curve"]),
                             (120, 60.0, 1e6 + 120, [[120, 60.0, 0.25]]))
        self.assertIn("| linear | 30.00 (2 seeds, 0.00 apart) |", (folder / "out" / "table3.md").read_text())
        self.assertIn("with other settings; choose another --work", run("--threads", "3", code=2)[1])


ALL = [f"figure{f}" for f in range(1, 10)] + [f"table{t}" for t in range(1, 6)] + ["couplet"]
ROOT = pathlib.Path(__file__).resolve().parent.parent


class Documents(unittest.TestCase):
    """The pages in docs/results match the records there."""
    RESULTS = ROOT / "docs" / "results"

    def test_pages_are_those_of_their_records(self):
        for name in ALL:
            with tempfile.TemporaryDirectory(prefix="linnet_reproduce_test.") as folder:
                done = subprocess.run([BIN / "linnet", "reproduce", name, "--from", self.RESULTS / (name + ".json"),
                                       "--out", folder], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                for file in (name + ".md", name + ".json"):
                    self.assertEqual((pathlib.Path(folder) / file).read_text(), (self.RESULTS / file).read_text(),
                                     "write it anew: linnet reproduce NAME --from")
                # Their bytes depend on the machine's font, so only the names are compared.
                drawn = sorted(path.name for path in pathlib.Path(folder).iterdir())
                self.assertEqual([name for name in drawn if not (self.RESULTS / name).exists()], [])


class Descriptions(unittest.TestCase):
    """The descriptions of the experiments, experiments/pages/*.json."""
    PAGES = ROOT / "experiments" / "pages"

    @classmethod
    def setUpClass(cls):
        cls.all = {path.stem: json.loads(path.read_text(), object_pairs_hook=cls.once) for path in cls.PAGES.glob("*.json")}

    @staticmethod
    def once(pairs):
        assert len({name for name, _ in pairs}) == len(pairs), f"a field twice: {pairs}"
        return dict(pairs)

    def describe(self, name):
        merged = {}
        for part in (*(self.describe(like) for like in self.all[name].get("like", [])), self.all[name]):
            merged |= {**part, "options": merged.get("options", []) + part.get("options", [])}
        return merged

    def test_help_and_pages(self):
        for name in ALL:
            about = self.describe(name)
            self.assertTrue((self.PAGES / (about.get("page", name) + ".md")).exists(), name)
            self.assertTrue(all(example.startswith("  linnet reproduce ") for example in about["examples"]), name)
            for option in about["options"]:
                self.assertLessEqual(set(option), {"name", "type", "help", "default", "range", "real", "choices", "many",
                                                   "flag", "excludes", "missing", "amends"}, name)
                self.assertTrue(option["name"].startswith("--") and option["help"], name)
                if "range" in option and option.get("default") is not None:
                    self.assertTrue(option["range"][0] <= option["default"] <= option["range"][1], option)
            drawn = {figure["name"] for figure in about.get("figures", []) if "{{" not in figure["name"]}
            self.assertLessEqual(drawn, set(about.get("pictures", [name])), name)

    def test_the_papers_numbers(self):
        """Of tables 1 and 2 the images a second are in table 4 too; those of table 5 are times of the same methods."""
        for table, dataset in zip(("table1", "table2"), self.describe("generate")["datasets"]):
            about = self.describe(table)
            self.assertEqual([method["name"] for method in about["methods"]], ["softmax", "lsh-1", "lsh-4", "linear"])
            rates = {method["name"]: method["paper"]["rate"] for method in dataset["methods"]}
            for method in about["methods"]:
                self.assertEqual(method["paper_images"], rates[method["name"]], (table, method["name"]))
                self.assertTrue(0.5 < method["paper_bits"] < 8)
            self.assertEqual((about["dataset"], about["chunk"]), (dataset["dataset"], dataset["chunk"]))
            for method in dataset["methods"]:
                self.assertTrue(all(value > 0 for value in method["paper"].values()), method)
        for method in self.describe("table3")["methods"]:
            self.assertTrue(0 < method["paper_per"] < 100 and method["paper_epoch"] > 0, method)

    def test_the_parts_of_all(self):
        parts = self.describe("all")["parts"]
        self.assertEqual(sorted(part["name"] for part in parts), sorted(set(ALL) - {"couplet"}))
        self.assertLess(sum(part.get("share", 0) for part in parts), 0.8)  # the rest is for those without a budget
        for part in parts:
            if "of" in part:
                self.assertEqual(self.describe(part["name"])["work"], self.describe(part["of"])["work"])


class Table4(unittest.TestCase):
    def test_a_page_with_a_picture(self):
        with tempfile.TemporaryDirectory(prefix="linnet_reproduce_test.") as folder:
            records = [dict(method=method, dataset=dataset, images_per_second=rate, batch=2, threads=2, isa="AVX3", N=784,
                            state_bytes=state, memory_last_bytes=grown)
                       for dataset in ("mnist", "cifar10")
                       for method, rate, grown, state in (("softmax", 0.02, 8e6, 7.83e6), ("stateful", 2, 24e6, 7.83e6),
                                                          ("linear", 20, 2e6, 549e3))]
            path = pathlib.Path(folder) / "in.json"
            path.write_text(json.dumps({"machine": "A machine", "date": "2026-11-22", "precision": "f32",
                                        "records": records}))
            done = subprocess.run([BIN / "linnet", "reproduce", "table4", "--from", path, "--out", folder],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            page = (pathlib.Path(folder) / "table4.md").read_text()
            self.assertIn("| stateful softmax | 2 | 2.00 | 100 | 12.0 MB | 10.0 kB | 7.83 MB | 7.56 | 16.8 |", page)
            self.assertIn("| linear | 2 | 20.0 | 1,000 | 1.00 MB | 549 kB | 549 kB | 17.85 | 4,462 |", page)


class Couplet(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        self.addCleanup(shutil.rmtree, self.dir)
        (self.dir / "out").mkdir()

    def reproduce(self, *arguments):
        return subprocess.run([BIN / "linnet", "reproduce", "couplet", "--out", self.dir / "out",
                               *map(str, arguments)], capture_output=True, text=True)

    def result(self):
        rules = {"lines": 200, "length": 200, "punctuation": 200, "places": 190, "repeats": 180, "mirrored": 200,
                 "all": 170}
        shown = {"first": "天地", "second": "日月", "greedy": "山川", "drawn": "河海", "beam of 16": "江湖"}
        return {"machine": "A machine", "date": "2026-11-21",
                "perplexities": [{"model": "m", "data": "d", "perplexity": 61.8, "pairs": 2000, "characters": 12000,
                                  "unknown": 12, "left_out": 3}],
                "curves": [{"run": "m", "points": [[500, 200.0], [1000, 90.0], [1500, 95.0]], "network": network,
                            "layers": 2, "d_model": 64, "parameters": 1_000_000, "data": "couplets: 9 pairs",
                            "steps": 1500, "epochs": 1.5, "seconds": 90.0}
                           for network in ("transformer", "encoder-decoder")],
                "rules": [dict(rules, way=way) for way in ("greedy", "drawn, without rules")],
                "shown": [shown]}

    def test_a_page_with_pictures(self):
        (self.dir / "in.json").write_text(json.dumps(self.result()))
        done = self.reproduce("--from", self.dir / "in.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.dir / "out" / "couplet.md").read_text()
        self.assertIn("| m | d | 61.8 | 2,000 | 12,000 | 0.100 | 3 |", page)
        self.assertIn("| drawn, without rules | 100 | 100 | 95.0 | 90.0 | 100 | 85.0 |", page)
        self.assertIn("| 天地 | 山川 | 河海 | 江湖 | 日月 |", page)
        self.assertIn("| m | couplets: 9 pairs | encoder and decoder, 2 + 2 layers of 64 | 1.00M | 1,500 | 1.50 | 1.50 "
                      "| 90.0 | 95.0 |", page)
        self.assertEqual(len(list((self.dir / "out").iterdir())), 6)
        self.assertEqual(json.loads((self.dir / "out" / "couplet.json").read_text())["experiment"], "couplet")
        done = self.reproduce("--from", self.dir / "in.json", "--out", self.dir / "new" / "folder")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.dir / "new" / "folder" / "couplet.md").exists())

    def test_refuses_what_is_no_result(self):
        whole = self.result()
        for broken in ({}, [], dict(whole, machine=3), dict(whole, rules=[]), dict(whole, shown=[{}]),
                       dict(whole, curves=[dict(whole["curves"][0], points=[])]), dict(whole, experiment="table1")):
            (self.dir / "in.json").write_text(json.dumps(broken))
            done = self.reproduce("--from", self.dir / "in.json")
            self.assertEqual(done.returncode, 2, broken)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1)
            self.assertEqual(list((self.dir / "out").iterdir()), [])
        done = self.reproduce()
        self.assertEqual(done.returncode, 2)
        self.assertIn("--data", done.stderr)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
