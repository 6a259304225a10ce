"""Shared by tests of the Python package: builds its wheel, installs it and runs a test with it. Builds a second wheel,
which test_the_wheel compares with the first.

    import python_package_util as util

    if __name__ == "__main__":
        util.enter()               # returns in a process that can import linnet and numpy

Arguments of a test: BIN_DIR BUILD_DIR [unittest arguments]. Needs a Python with numpy, venv and ensurepip: this one, or
Debian's (packages python3-numpy and python3-venv). If both lack them, the test prints a message and exits with 77.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = 77
BIN = BUILD = pathlib.Path()  # enter() sets them

DIGITS = SOURCE / "models" / "digits.safetensors"
COUPLET = SOURCE / "models" / "couplet.safetensors"
PHONES = SOURCE / "models" / "phones.safetensors"
CAUSAL_PHONES = SOURCE / "models" / "phones-causal.safetensors"
CHECKPOINTS = SOURCE / "tests" / "checkpoints"
TEXTS = [CHECKPOINTS / "text-byte.safetensors", CHECKPOINTS / "text-character-tied-full.safetensors"]
BYTE_PAIRS = SOURCE / "tests" / "golden" / "tokenizer" / "language_model.safetensors"


def python_with_numpy():
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        done = subprocess.run([python, "-c", "import numpy, venv, ensurepip"], capture_output=True)
        if done.returncode == 0:
            return python
    return None


def run_ok(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, **options)
    if done.returncode != 0:
        sys.exit(f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def run_installed(arguments):
    """Runs a test file in a virtual environment in which the wheel is installed; returns the test's exit code."""
    python = python_with_numpy()
    if python is None:
        print("skipped: no Python here has numpy, venv and ensurepip; on Debian, install python3-numpy and "
              "python3-venv")
        return SKIPPED
    test, binaries, build = (pathlib.Path(name).resolve() for name in arguments[:3])
    with tempfile.TemporaryDirectory(prefix="linnet_python_package_test.") as folder:
        wheels = [run_ok(SOURCE / "python" / "build-wheel", "--build", build, "--out", f"{folder}/{out}").strip()
                  for out in ("a", "b")]
        run_ok(python, "-m", "venv", "--system-site-packages", f"{folder}/venv")
        installed = f"{folder}/venv/bin/python"
        run_ok(installed, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheels[0])
        # The test runs outside the source tree, without variables that lead to other Python modules or libraries.
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("PYTHONPATH", "PYTHONHOME", "LINNET_LIBRARY")}
        environment["LINNET_WHEELS"] = os.pathsep.join(wheels)
        return subprocess.run([installed, "-W", "error", test, binaries, build, *arguments[3:]], env=environment,
                              cwd=folder).returncode


def enter():
    global BIN, BUILD
    if "LINNET_WHEELS" not in os.environ:
        sys.exit(run_installed(sys.argv))
    BIN, BUILD = map(pathlib.Path, sys.argv[1:3])
    del sys.argv[1:3]


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_python_package_test."))
        self.addCleanup(shutil.rmtree, self.dir)

    def program(self, *arguments):
        """Runs linnet; returns its stdout."""
        done = subprocess.run([BIN / "linnet", *map(str, arguments)], cwd=self.dir, capture_output=True, text=True,
                              timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def python(self, script, **options):
        """Runs a script in a new process; returns the finished process."""
        return subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=self.dir, capture_output=True,
                              text=True, timeout=300, **options)
