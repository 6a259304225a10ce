"""Shared by the tests of linnet reproduce, which run it in a temporary folder. In some, a script replaces linnet."""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path("build/release/bin").resolve()  # main() sets it

# All experiments: the figures and tables of the paper, recall and the couplets.
ALL = [f"figure{f}" for f in range(1, 10)] + [f"table{t}" for t in range(1, 6)] + ["batch", "polynomial", "recall", "couplet"]

# Invented time (ms) and memory (MB) of a sample of length n, by method.
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


def has(program):
    """Whether a program was built. Only for use inside tests: main() sets BIN after classes are defined."""
    return (BIN / program).exists()


def has_bf16_products():
    """Whether this processor can train in bf16."""
    return "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text()


class Case(unittest.TestCase):
    """Runs `linnet reproduce COMMAND...` in the temporary folder `dir`, which has an empty folder `out`."""
    COMMAND = ()

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        self.addCleanup(shutil.rmtree, self.dir)
        (self.dir / "out").mkdir()

    def write(self, name, value):
        """Writes a str as it is, and any other value as JSON."""
        (self.dir / name).write_text(value if isinstance(value, str) else json.dumps(value))

    def read(self, name):
        return (self.dir / name).read_text()

    def reproduce(self, *arguments, env=None, program=None):
        return subprocess.run([program or BIN / "linnet", "reproduce", *map(str, (*self.COMMAND, *arguments))],
                              cwd=self.dir, env={**os.environ, **(env or {})}, capture_output=True, text=True,
                              timeout=600)

    def refuses_record(self, record, says=""):
        """Expects that --from refuses the record with one line that contains `says`, and writes nothing."""
        self.write("in.json", record)
        before = sorted(self.dir.rglob("*"))
        done = self.reproduce("--from", "in.json")
        self.assertEqual(done.returncode, 2, record)
        self.assertIn(says, done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertEqual(sorted(self.dir.rglob("*")), before)


class StandInCase(unittest.TestCase):
    """Runs linnet-reproduce with a script, STAND_IN, in place of linnet; it logs each call in the file `calls`."""
    STAND_IN = ""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_reproduce_test."))
        self.addCleanup(shutil.rmtree, self.dir)
        shutil.copy(BIN / "linnet-reproduce", self.dir)
        (self.dir / "linnet").write_text(self.STAND_IN)
        (self.dir / "linnet").chmod(0o755)

    def start(self, *arguments, **env):
        return subprocess.Popen([self.dir / "linnet-reproduce", *arguments, "--out", "out"], cwd=self.dir,
                                env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def reproduce(self, *arguments, **env):
        """Returns the exit code, stdout and stderr."""
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def calls(self):
        """Returns the lines of the file `calls`, and removes it."""
        path = self.dir / "calls"
        calls = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return calls


def main():
    """Runs the tests of the calling file, whose arguments are BIN_DIR [unittest arguments]."""
    global BIN
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
