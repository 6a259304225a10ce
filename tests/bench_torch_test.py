#!/usr/bin/env python3
"""Tests the benchmarks of training: linnet bench train, stem, memory and attention.

    tests/bench_torch_test.py BIN_DIR [unittest arguments]
"""

import json
import math
import pathlib
import signal
import subprocess
import sys
import time
import unittest

BIN = pathlib.Path("build/release/bin").resolve()


class BenchTorch(unittest.TestCase):
    def bench(self, *args):
        result = subprocess.run([BIN / "linnet", "bench", *map(str, args), "--threads", "2", "--json"],
                                capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_bench_train(self):
        records = self.bench("train", "--layers", "1", "--d-model", "32", "--batch", "1", "--seconds", "0",
                             "--precision", "fp32")
        self.assertEqual(len(records), 1)
        self.assertTrue(records[0]["checked"])
        for field in ("value", "limit", "ratio", "tokens_per_second", "share_of_gemm_rate", "forward_ms",
                      "backward_ms", "optimizer_share", "attention_ms", "feed_forward_ms"):
            self.assertGreater(records[0][field], 0, field)

    def test_bench_stem(self):
        records = self.bench("stem", "--batch", "1", "--channels", "5", "--d-model", "8", "--seconds", "0")
        self.assertEqual([r["name"] for r in records], ["stem", "stem"])
        for record in records:
            self.assertTrue(record["checked"])
            for field in ("value", "limit", "ratio", "conv2d_ms", "gflops", "peak_gflops"):
                self.assertGreater(record[field], 0, field)

    def test_memory_is_linear_in_the_length(self):
        records = self.bench("memory", "--max-n", "4096")
        by_dim = {}
        for record in records:
            by_dim.setdefault(record["dim"], {})[record["N"]] = record["value"]
        self.assertEqual(set(by_dim), {16, 32, 64, 128})
        # q, k, v, the output and their gradients are 8 tensors of 256 floats per position, for every D. A stored D x M
        # state per position would take D / 8 times as much.
        for dim, curve in by_dim.items():
            slope = (curve[4096] - curve[2048]) / (2048 * 1e-6)  # bytes per position
            self.assertGreater(slope, 0.8 * 8 * 256 * 4, dim)
            self.assertLess(slope, 1.5 * 8 * 256 * 4, dim)

    def test_bench_attention(self):
        records = self.bench("attention", "--min-n", "128", "--max-n", "256", "--tokens", "256", "--seconds", "0")
        methods = ["linear", "polynomial2", "softmax", "softmax-plain", "lsh-1", "lsh-4", "lsh-8"]
        for method in methods:
            of = [r for r in records if r["method"] == method]
            for what in ("time", "memory"):
                points = [r for r in of if r["name"] == f"attention/{method}/{what}"]
                self.assertEqual([(r["N"], r["batch"]) for r in points], [(128, 2), (256, 1)], method)
            self.assertEqual([r["name"].split("/")[2] for r in of[4:]],
                             ["time-exponent", "memory-exponent", "longest"])
            self.assertEqual((of[-1]["value"], of[-1]["left_out"]), (256, []))
            self.assertTrue(of[-1]["machine"] and of[-1]["date"])
        self.assertEqual(len(records), 7 * len(methods))
        for record in records:
            self.assertIs(record["checked"], True)
            for field in ("value", "limit", "ratio", "N", "batch", "threads", "isa", "precision", "heads"):
                self.assertIn(field, record)
            self.assertTrue(math.isfinite(record["value"]), record)

    def test_bench_attention_of_all_positions(self):
        records = self.bench("attention", "--min-n", "128", "--max-n", "128", "--tokens", "1", "--seconds", "0",
                             "--all-positions", "--methods", "linear,softmax,lsh-4")
        self.assertEqual([r["name"] for r in records if r["name"].endswith("time")],
                         ["attention/linear/time", "attention/softmax/time", "attention/lsh-4/time"])
        self.assertFalse(any(r["causal"] for r in records))

    def test_bench_attention_without_memory(self):
        result = subprocess.run([BIN / "linnet", "bench", "attention", "--json", "--min-n", "512", "--max-n", "65536",
                                 "--methods", "softmax-plain", "--memory", "0.01", "--seconds", "0"],
                                capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"^linnet bench attention: left out softmax-plain from N = 512: .*MB.*\n$")
        record, = json.loads(result.stdout)
        self.assertEqual((record["name"], record["value"]), ("attention/softmax-plain/longest", 0))
        self.assertEqual([left["N"] for left in record["left_out"]], [2 ** i for i in range(9, 17)])

    def test_bench_attention_refuses(self):
        for arguments, fragment in ((["--methods", "linear,magic"], "magic"), (["--max-n", "2"], "--max-n"),
                                    (["--min-n", "256", "--max-n", "128"], "--min-n"), (["--what"], "--what")):
            result = subprocess.run([BIN / "linnet", "bench", "attention", *arguments], capture_output=True, text=True,
                                    timeout=60)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
            self.assertIn(fragment, result.stderr)

    def test_bench_attention_stops(self):
        for sign in (signal.SIGINT, signal.SIGTERM):
            bench = subprocess.Popen([BIN / "linnet", "bench", "attention", "--seconds", "600", "--threads", "1",
                                      "--methods", "linear"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

            def children():
                return pathlib.Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().split()

            deadline = time.monotonic() + 60
            while not children() and time.monotonic() < deadline:
                time.sleep(0.05)
            child = children()[0]
            bench.send_signal(sign)
            out, err = bench.communicate(timeout=60)
            self.assertEqual((bench.returncode, out, err), (130, "", ""))
            self.assertFalse(pathlib.Path("/proc", child).exists())


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
