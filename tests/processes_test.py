#!/usr/bin/env python3
"""End-to-end tests of training with several processes, which `linnet train --processes` or torchrun starts.

    tests/processes_test.py BIN_DIR [unittest arguments]
"""

import array
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import train_forks

BIN = pathlib.Path("build/release/bin").resolve()

COPY = ["copy", "--layers", "2", "--heads", "2", "--d-model", "32", "--batch", "8", "--max-length", "12", "--threads", "1",
        "--log-every", "5", "--validate-every", "10", "--checkpoint-every", "10", "--seed", "3", "--lr", "1e-3"]
TEXT = ["text", "--preset", "small", "--layers", "2", "--heads", "2", "--d-model", "32", "--batch", "8", "--context", "32",
        "--threads", "1", "--log-every", "5", "--seed", "3"]


def tensors(path):
    """Returns {name: floats} of the fp32 tensors of a safetensors file. The random state has another type."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__")
    return {name: array.array("f", data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in header.items() if t["dtype"] == "F32"}


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def children(process):
    return [int(child) for child in
            pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def wait_until(condition):
    end = time.monotonic() + 120
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the condition did not come true within 120 s")
        time.sleep(0.01)


class ProcessesTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_processes_test."))
        self.addCleanup(shutil.rmtree, self.dir)

    def train(self, *arguments, code=0):
        done = train_forks.run(BIN, "train", *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def start(self, *arguments, **env):
        """Starts linnet-train in a process of its own, for tests that send signals or set environment variables."""
        process = subprocess.Popen([BIN / "linnet-train", "train", *map(str, arguments)], stderr=subprocess.PIPE,
                                   text=True, env={**os.environ, **env})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def refused(self, said, *words):
        self.assertEqual(len(said.strip().splitlines()), 1, said)
        for word in words:
            self.assertIn(word, said)

    def assert_same_run(self, a, b, tolerance):
        """Losses and weights of two runs agree, relative to the largest value of each tensor."""
        for one, other in zip(records(a), records(b), strict=True):
            self.assertEqual(one["step"], other["step"])
            for name, value in one.items():
                if name not in ("seconds", "tokens_per_second", "peak_memory"):
                    self.assertAlmostEqual(value, other[name], delta=10 * tolerance * abs(value), msg=name)
        ours, theirs = (tensors(folder / "state.safetensors") for folder in (a, b))
        self.assertEqual(ours.keys(), theirs.keys())
        for name in ours:
            largest = max(map(abs, ours[name]))
            difference = max(abs(x - y) for x, y in zip(ours[name], theirs[name], strict=True))
            self.assertLessEqual(difference, tolerance * largest, name)

    def test_copy_as_in_one_process(self):
        self.train(*COPY, "--steps", 40, "--out", self.dir / "1")
        for count in (2, 4):
            said = self.train(*COPY, "--steps", 40, "--processes", count, "--out", self.dir / str(count))
            self.assertIn(f"{count} processes of 1 thread", said)
            self.assertEqual(said.count("wrote "), 1)
            self.assert_same_run(self.dir / "1", self.dir / str(count), 1e-5)

    def test_text_as_in_one_process(self):
        text = self.dir / "text.txt"
        text.write_text("".join(f"{i} times {i} is {i * i}.\n" for i in range(400)))
        for flags in ([], ["--processes", "2"], ["--processes", "2", "--accumulate", "2"]):
            self.train(*TEXT, "--data", text, "--steps", 20, "--ema", 0.9, *flags, "--out", self.dir / f"{len(flags)}")
        for other in ("2", "4"):
            self.assert_same_run(self.dir / "0", self.dir / other, 1e-5)

    def test_pieces_of_sequences_as_whole_ones(self):
        text = self.dir / "text.txt"
        text.write_text("".join(f"{i} times {i} is {i * i}.\n" for i in range(400)))
        # The moments in the checkpoint hold the gradients and their squares. RAdam's first updates do not divide by the
        # gradients' size, as Adam's do, which would enlarge the rounding errors of small ones.
        flags = ["--data", text, "--steps", 2, "--lr-warmup", 0, "--lr", "1e-3", "--optimizer", "radam", "--context", 37,
                 "--batch", 4]
        for kind in ("causal-linear", "gla", "gated-delta-net", "rwkv7"):
            whole = self.dir / kind
            self.train(*TEXT, *flags, "--attention", kind, "--out", whole)
            # 2 pieces; 3 pieces of unequal length; 2 groups of 2 pieces, each with half of the batch in two parts.
            for processes, pieces, more in ((2, 2, []), (3, 3, []), (4, 2, ["--accumulate", 2])):
                out = self.dir / f"{kind}-{processes}"
                self.train(*TEXT, *flags, *more, "--attention", kind, "--processes", processes, "--sequence-parallel",
                           pieces, "--out", out)
                self.assert_same_run(whole, out, 2e-5)
        self.train("text", "--resume", "--steps", 3, "--processes", 2, "--sequence-parallel", 2, "--out", whole)

    def test_pieces_that_cannot_be_computed_are_refused(self):
        text = self.dir / "text.txt"
        text.write_text("one two three. " * 400)
        two = ["--processes", 2, "--sequence-parallel", 2, "--out", self.dir / "run"]
        data = [*TEXT, "--data", text]
        self.refused(self.train(*data, "--attention", "full", *two, code=2), "--sequence-parallel", "full")
        self.refused(self.train(*data, "--attention", "causal-linear,full", "--window", 8, *two, code=2), "full")
        self.refused(self.train(*COPY, *two, code=2), "--sequence-parallel", "copy")
        self.refused(self.train(*data, *two[2:], code=2), "not a multiple")
        self.refused(self.train(*data, "--context", 1, *two, code=2), "--context")
        self.assertFalse((self.dir / "run" / "model.safetensors").exists())

    def test_resumes_with_another_number(self):
        whole, broken = self.dir / "whole", self.dir / "broken"
        self.train(*COPY, "--steps", 40, "--out", whole)
        self.train(*COPY, "--steps", 20, "--processes", 2, "--out", broken)
        for steps, count in ((30, 1), (40, 3)):
            self.train("copy", "--resume", "--steps", steps, "--processes", count, "--out", broken)
        self.assertEqual(records(broken)[-1]["step"], 40)
        weights = [tensors(folder / "model.safetensors") for folder in (whole, broken)]
        for name in weights[0]:
            largest = max(map(abs, weights[0][name]))
            difference = max(abs(x - y) for x, y in zip(weights[0][name], weights[1][name], strict=True))
            self.assertLessEqual(difference, 1e-5 * largest, name)
        said = self.train("copy", "--resume", "--processes", 2, "--out", broken)
        self.assertIn("nothing to do", said)

    def test_resumes_bit_for_bit(self):
        whole, broken = self.dir / "whole", self.dir / "broken"
        flags = ["--dropout", 0.1, "--ema", 0.9, "--processes", 2]
        self.train(*COPY, *flags, "--steps", 30, "--out", whole)
        self.train(*COPY, *flags, "--steps", 14, "--out", broken)
        self.train("copy", "--resume", "--steps", 30, "--processes", 2, "--out", broken)
        for file in ("model.safetensors", "state.safetensors"):
            self.assertEqual(tensors(whole / file), tensors(broken / file))

    def test_an_interrupt_writes_a_checkpoint(self):
        process = self.start(*COPY, "--steps", 1000000, "--processes", 2, "--checkpoint-every", 1000000,
                             "--checkpoint-minutes", 0.001, "--out", self.dir / "run")
        wait_until((self.dir / "run" / "model.safetensors").exists)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
        self.assertEqual(process.returncode, 130, said)
        self.assertEqual(said.count("continue with: linnet train copy --resume"), 1, said)
        self.assertIn("--processes 2", said)
        step = json.loads((self.dir / "run" / "config.json").read_text())["steps"]
        self.assertEqual(step, 1000000)
        self.assertFalse([path for path in (self.dir / "run").iterdir() if ".tmp." in path.name])

    def test_a_killed_process_ends_all(self):
        process = self.start(*COPY, "--steps", 1000000, "--processes", 3, "--out", self.dir / "run")
        wait_until((self.dir / "run" / "model.safetensors").exists)
        ranks = children(process)
        self.assertEqual(len(ranks), 3)
        os.kill(ranks[1], signal.SIGKILL)
        said = process.communicate(timeout=120)[1]
        self.assertEqual(process.returncode, 1, said)
        self.assertIn("process 1 of 3 was ended by signal 9", said.splitlines()[-1])
        self.assertFalse(any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks))
        self.train("copy", "--resume", "--steps", records(self.dir / "run")[-1]["step"] + 5, "--out", self.dir / "run")

    def test_errors_are_reported_once(self):
        said = self.train(*COPY, "--steps", 40, "--lr", "1e30", "--lr-warmup", 0, "--processes", 2, "--out",
                          self.dir / "run", code=1)
        self.assertEqual(said.count("NaN or infinite"), 1, said)

    def test_as_torchrun_starts_them(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        both = [self.start(*COPY, "--steps", 20, "--out", self.dir / "run", RANK=str(rank), **env) for rank in (1, 0)]
        for process in both:
            said = process.communicate(timeout=120)[1]
            self.assertEqual(process.returncode, 0, said)
        self.train(*COPY, "--steps", 20, "--processes", 2, "--out", self.dir / "forks")
        self.assertEqual(tensors(self.dir / "run" / "model.safetensors"),
                         tensors(self.dir / "forks" / "model.safetensors"))

    def test_different_settings_are_refused(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        text = self.dir / "text.txt"
        text.write_text("one two three. " * 400)
        for task, other in ((COPY, ["--lr", "2e-3"]), ([*TEXT, "--data", text], ["--sequence-parallel", 2])):
            both = [self.start(*task, "--steps", 20, *flags, "--out", self.dir / "run", RANK=str(rank), **env)
                    for rank, flags in ((0, []), (1, other))]
            for process in both:
                self.refused(process.communicate(timeout=120)[1], "different settings")
                self.assertEqual(process.returncode, 2)

    def test_a_child_of_another_program_is_ignored(self):
        command = [BIN / "linnet-train", "train", *COPY, "--steps", 40, "--processes", 2, "--out", self.dir / "run"]
        done = subprocess.run(["sh", "-c", "sleep 0.1 & exec \"$@\"", "sh", *map(str, command)], capture_output=True,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("wrote ", done.stderr)

    def test_temporary_files(self):
        out = ["--steps", 5, "--processes", 2, "--out", self.dir / "run"]
        process = self.start(*COPY, *out, TMPDIR=str(self.dir / "nowhere"))
        self.refused(process.communicate(timeout=120)[1], "TMPDIR")
        (self.dir / "tmp").mkdir()
        for more in ([], ["--resume", "--processes", 2000]):
            process = self.start(*(["copy"] if more else COPY), *out[:2], *out[-2:], *(more or out[2:4]),
                                 TMPDIR=str(self.dir / "tmp"))
            process.communicate(timeout=120)
            self.assertEqual(process.returncode, 2 if more else 0)
            self.assertEqual(list((self.dir / "tmp").iterdir()), [])

    def test_refuses(self):
        out = ["--steps", 2, "--out", self.dir / "run"]
        self.refused(self.train(*COPY, *out, "--batch", 2, "--processes", 3, code=2), "--batch 2 is too small")
        self.refused(self.train(*COPY, *out, "--processes", 0, code=2), "--processes")
        self.refused(self.train(*COPY, *out, "--processes", 2, "--layers", 0, code=2), "--layers")
        for env, words in (({"WORLD_SIZE": "x"}, ["WORLD_SIZE is 'x'"]),
                           ({"WORLD_SIZE": "2", "RANK": "2"}, ["RANK is '2'", "0 to 1"]),
                           ({"WORLD_SIZE": "2", "RANK": "0"}, ["MASTER_ADDR is not"]),
                           ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}, ["MASTER_PORT is ''"])):
            process = self.start(*COPY, *out, **env)
            self.refused(process.communicate(timeout=120)[1], *words)
            self.assertEqual(process.returncode, 2)
        process = self.start(*COPY, *out, "--processes", 2, WORLD_SIZE="2")
        self.refused(process.communicate(timeout=120)[1], "WORLD_SIZE is set")
        self.assertFalse((self.dir / "run").exists())


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
