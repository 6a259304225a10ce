#!/usr/bin/env python3
"""Tests of scripts/bench-gate, with scripts in place of linnet that print known times."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

GATE = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "bench-gate"
# Stands in for linnet: prints up to two records. The value of "a" is `factor` times a number from 0.98 to 1.02 that
# depends on how often the program has been called.
PROGRAM = """#!/usr/bin/env -S python3 -S -E
import json, pathlib, sys
assert sys.argv[-1] == "--json"
calls = pathlib.Path(__file__).with_name("calls")
count = int(calls.read_text()) if calls.exists() else 0
calls.write_text(str(count + 1))
noise = 1 + 0.01 * (-1) ** (count // 2) * (count % 3)
records = [{{"name": name, "N": 512, "value": value, "limit": 1, "ratio": value, "checked": {checked}, "unit": "ms"}}
           for name, value in (("a", {factor} * noise), ("b", 2.0))]
print(json.dumps(records[:{records}]))
sys.exit({code})
"""


class BenchGateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="linnet_bench_gate_test.")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        (self.dir / "suite.json").write_text(json.dumps(["bench a", "bench other"]))

    def program(self, name, factor=1.0, checked=True, records=2, code=0):
        (self.dir / name).mkdir()
        path = self.dir / name / "linnet"
        path.write_text(PROGRAM.format(factor=factor, checked=checked, records=records, code=code))
        path.chmod(0o755)
        return self.dir / name

    def gate(self, here, *arguments, code=0):
        done = subprocess.run([GATE, "--here", here, "--baseline", self.dir, "--rounds", "3", *map(str, arguments)],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_two_builds(self):
        other = self.program("other")
        self.assertIn("nothing is slower", self.gate(self.program("same"), other))
        self.assertIn("nothing is slower", self.gate(self.program("faster", 0.8), other))
        said = self.gate(self.program("slower", 1.2), other, code=1)
        self.assertIn("again: bench a", said)
        self.assertIn("SLOWER a 512", said)
        self.assertIn("ok     b 512", said)
        self.assertIn("bench-gate: 2 slower: a 512; a 512 (bench other)", said)

    def test_recorded_ratios(self):
        here = self.program("here")
        self.assertIn("no record of this kind of machine", self.gate(here, code=1))
        self.assertIn("4 ratios", self.gate(here, "--record"))
        self.assertIn("nothing is slower", self.gate(here))
        self.assertIn("nothing is slower", self.gate(self.program("little", 1.05)))
        self.assertIn("SLOWER a 512", self.gate(self.program("slower", 1.2), code=1))
        less = self.program("less", records=1)
        self.assertIn("MISSING b 512", self.gate(less, code=1))
        self.assertNotIn("MISSING", self.gate(less, "--only", "bench a"))

    def test_refuses(self):
        here = self.program("here")
        self.assertIn("does not measure it", self.gate(self.program("less", records=1), here, code=1))
        self.assertIn("does not measure it", self.gate(self.program("wrong", checked=False), here, code=1))
        self.assertIn("exit 3", self.gate(self.program("broken", code=3), here, code=1))
        self.assertIn("holds no program linnet", self.gate(self.dir / "nowhere", code=2))
        self.assertIn("no command of the suite", self.gate(here, "--only", "magic", code=2))
        self.assertIn("--record", self.gate(here, here, "--record", code=2))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
