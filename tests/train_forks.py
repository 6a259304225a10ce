"""Runs `linnet train` and `linnet linearize` as forks of one process that has libtorch loaded (train_forks.cc).
Starting linnet-train takes 0.6 s, mostly to load libtorch, and the tests would start it hundreds of times."""

import atexit
import json
import os
import pathlib
import select
import subprocess
import tempfile

VERBS = ("train", "linearize")

_servers = {}


def variables_for_libtorch():
    """The variables that `linnet` sets before it starts linnet-train. With other kernels of OpenBLAS, sums would differ
    from those of `linnet train`."""
    variables = {"GOMP_SPINCOUNT": "10000"}
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    if "avx2" in flags:
        variables["OPENBLAS_CORETYPE"] = "SKYLAKEX" if "avx512vl" in flags else "HASWELL"
    return variables


class _Server:
    def __init__(self, program):
        env = {**variables_for_libtorch(), **os.environ}
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.folder = tempfile.TemporaryDirectory(prefix="linnet_train_forks.")
        atexit.register(self.close)

    def close(self):
        self.process.kill()  # Linux then kills its child too (PR_SET_PDEATHSIG)
        self.process.communicate()
        self.folder.cleanup()

    def run(self, arguments, timeout, cwd):
        out, err = (pathlib.Path(self.folder.name) / name for name in ("out", "err"))
        command = {"arguments": arguments, "folder": str(cwd), "out": str(out), "err": str(err)}
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(arguments, timeout, err.read_bytes())
        code = self.process.stdout.readline()
        if not code:
            raise RuntimeError(f"train_forks ended with {self.process.wait()} before {arguments} had run")
        return subprocess.CompletedProcess(arguments, int(code), out.read_text(), err.read_text())


def run(folder, *args, timeout=300, cwd=None):
    """Runs `linnet ARGS` with the programs in `folder`; returns a CompletedProcess with text output."""
    args = [str(arg) for arg in args]
    if not args or args[0] not in VERBS:
        return subprocess.run([folder / "linnet", *args], capture_output=True, text=True, timeout=timeout, cwd=cwd)
    if folder not in _servers:
        _servers[folder] = _Server(folder / "train_forks")
    server = _servers[folder]
    try:
        return server.run(args, timeout, cwd or os.getcwd())
    except subprocess.TimeoutExpired:
        del _servers[folder]
        server.close()
        raise
