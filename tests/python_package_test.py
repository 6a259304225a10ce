#!/usr/bin/env python3
"""Tests the Python package linnet: its wheel, models, errors, training runs, and the examples of python/README.md.

    tests/python_package_test.py BIN_DIR BUILD_DIR [unittest arguments]

Needs numpy and venv: see python_package_util.py.
"""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import unittest
import warnings
import wave

import python_package_util as util
from python_package_util import CHECKPOINTS, DIGITS, SOURCE, TEXTS, Case, run_ok

if __name__ == "__main__":
    util.enter()

import linnet  # noqa: E402
import numpy as np  # noqa: E402
from linnet import _library  # noqa: E402


class WheelTest(Case):
    def test_the_wheel(self):
        first, second = map(pathlib.Path, os.environ["LINNET_WHEELS"].split(os.pathsep))
        self.assertEqual(first.name, second.name)
        self.assertEqual(first.read_bytes(), second.read_bytes())
        self.assertEqual([path.name for path in first.parent.iterdir()], [first.name])
        self.assertRegex(first.name, r"^linnet-\d+\.\d+\.\d+-py3-none-(many)?linux_(\d+_\d+_)?(x86_64|aarch64)\.whl$")
        folder = pathlib.Path(linnet.__file__).parent
        self.assertTrue((folder / "py.typed").exists())
        self.assertEqual(pathlib.Path(linnet.library_path()).parent, folder / "lib")
        self.assertEqual(self.program("--version").split()[1], linnet.__version__)

    def test_the_bundled_libraries_are_loaded(self):
        maps = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines()}
        folder = pathlib.Path(linnet.__file__).parent / "lib"
        names = (folder / "preload.txt").read_text().split()
        for name in names:
            self.assertEqual([path for path in maps if pathlib.Path(path).name == name], [str(folder / name)])
        self.assertEqual({path.name for path in folder.iterdir()},
                         {*names, "preload.txt", pathlib.Path(linnet.library_path()).name})

    def test_refusals_of_the_builder(self):
        command = [SOURCE / "python" / "build-wheel", "--build", self.dir, "--out", self.dir / "dist"]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^build-wheel: .*: not found; build it .*\n$")
        library = self.dir / "liblinnet.so"
        library.write_bytes(b"no library")
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("liblinnet.so: not a 64-bit little-endian ELF file", done.stderr)
        self.assertFalse((self.dir / "dist").exists())

    def test_a_library_that_is_missing_or_of_another_version(self):
        script = "import linnet"
        done = self.python(script, env={**os.environ, "LINNET_LIBRARY": "/nowhere/liblinnet.so"})
        self.assertIn("LibraryError: linnet: cannot load its library: /nowhere/liblinnet.so", done.stderr)
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("no C compiler")
        for code, reason in (('const char* linnet_version(void) { return "0.1.7"; }',
                              "is version 0.1.7, but the Python package is version"),
                             ("int linnet_nothing;", "has no function linnet_version")):
            run_ok(compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", self.dir / "other.so", input=code)
            done = self.python(script, env={**os.environ, "LINNET_LIBRARY": str(self.dir / "other.so")})
            self.assertIn(reason, done.stderr)
            self.assertIn("LibraryError", done.stderr)

    def test_the_library_of_the_environment_and_of_the_system(self):
        library = util.BUILD / pathlib.Path(linnet.library_path()).name
        script = "import linnet; print(linnet.library_path())"
        done = self.python(script, env={**os.environ, "LINNET_LIBRARY": str(library)})
        self.assertEqual(done.stdout.strip(), str(library), done.stderr)
        # A package that contains no library loads the system's.
        shutil.copytree(SOURCE / "python" / "linnet", self.dir / "linnet")
        done = self.python(script, env={**os.environ, "LD_LIBRARY_PATH": str(library.parent)})
        self.assertEqual(done.stdout.strip(), library.name, done.stderr)


class HeaderTest(unittest.TestCase):
    """The types in python/linnet/_library.py match the header linnet.h."""

    def setUp(self):
        header = (SOURCE / "include" / "linnet" / "linnet.h").read_text()
        self.header = re.sub(r"/\*.*?\*/", " ", header, flags=re.DOTALL)

    def kind(self, declaration):
        """The type of a C declaration: "int", "size_t" and so on, or "*" for any pointer."""
        words = [word for word in re.findall(r"\w+|\*", declaration) if word != "const"]
        return "*" if "*" in words else words[0]

    def check(self, name, types, declarations):
        names = {ctypes.c_int: "int", ctypes.c_float: "float", ctypes.c_double: "double", ctypes.c_size_t: "size_t",
                 ctypes.c_int32: "int32_t", ctypes.c_uint64: "uint64_t", None: "void",
                 _library.Progress: "linnet_progress", _library.Reader: "linnet_reader"}
        same = {"int32_t": "int", "size_t": "uint64_t"}  # ctypes has one type for both
        found = [names.get(kind, "*") for kind in types]
        expected = [self.kind(declaration) for declaration in declarations]
        self.assertEqual([same.get(kind, kind) for kind in found], [same.get(kind, kind) for kind in expected], name)

    def test_functions(self):
        declared = dict()
        for result, name, arguments in re.findall(r"LINNET_API ([^;(]*?)linnet_(\w+)\(([^)]*)\);", self.header):
            declared[name] = [result, *(argument for argument in arguments.split(",") if argument.strip() != "void")]
        self.assertGreater(len(declared), 60)
        for name, types in _library._FUNCTIONS.items():
            self.check(name, types, declared[name])

    def test_structs(self):
        for struct, name in ((_library.Sampling, "sampling"), (_library.ImageOptions, "image_options"),
                             (_library.TextOptions, "text_options"), (_library.CoupletOptions, "couplet_options")):
            body, = re.findall(rf"typedef struct linnet_{name} \{{(.*?)\}}", self.header, re.DOTALL)
            fields = [field.strip() for field in body.split(";") if field.strip()]
            names = [re.findall(r"\w+", field)[-1] for field in fields]
            self.assertEqual([field[0] for field in struct._fields_], names)
            self.check(name, [field[1] for field in struct._fields_], fields)


class ModelTest(Case):
    def test_properties(self):
        model = linnet.Model(DIGITS)
        info = json.loads(self.program("info", DIGITS, "--json"))
        self.assertEqual((model.task, model.precision, model.path), ("images", "f32", str(DIGITS)))
        self.assertEqual((model.vocabulary, model.positions, model.image_shape), (256, 783, (28, 28)))
        self.assertEqual(model.outputs, 3 * model.spec["mixtures"])
        self.assertEqual(model.parameters, info["parameters"])
        self.assertEqual(model.training["data"], "mnist: 60000 training images")
        self.assertTrue(model.limited)
        self.assertGreater(model.state_bytes, 0)
        self.assertEqual((model.sample_rate, model.phones), (0, []))
        self.assertEqual(repr(model), f"<linnet.Model '{DIGITS}': images, f32>")
        self.assertEqual(linnet.Model(CHECKPOINTS / "images-causal-linear.safetensors", "int8").precision, "int8")

    def test_a_run_and_bytes(self):
        run = self.dir / "run"
        run.mkdir()
        (run / "model.safetensors").write_bytes(TEXTS[0].read_bytes())
        expected = linnet.Model(TEXTS[0]).generate("a", 20, seed=1)
        self.assertEqual(linnet.Model(run).generate("a", 20, seed=1), expected)
        data = TEXTS[0].read_bytes()
        for given in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
            self.assertEqual(linnet.Model.from_bytes(given).generate("a", 20, seed=1), expected)
        self.assertEqual(linnet.Model.from_bytes(data, "bf16", 1, label="mine").path, "mine")

    def test_closed(self):
        with linnet.Model(TEXTS[0]) as model:
            state = model.new_state()
        for call in (lambda: model.generate("a"), lambda: state.step(1), lambda: model.spec, lambda: model.encode("a")):
            with self.assertRaisesRegex(linnet.InputError, "the model is closed; open it again"):
                call()
        self.assertIn("(closed)", repr(model))

    def test_no_pickles(self):
        import copy
        import pickle
        for thing in (linnet.Model(TEXTS[0]), linnet.Model(TEXTS[0]).new_state()):
            with self.assertRaises(TypeError):
                pickle.dumps(thing)
        with self.assertRaises(TypeError):
            copy.copy(linnet.Model(TEXTS[0])._handle)

    def test_threads_share_a_model(self):
        model = linnet.Model(DIGITS)
        expected, found = [model.sample(1, seed=seed) for seed in range(4)], [None] * 4

        def draw(seed):
            found[seed] = model.sample(1, seed=seed)

        workers = [threading.Thread(target=draw, args=(seed,)) for seed in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertTrue(np.array_equal(found, expected))

    def test_a_forked_process(self):
        model = linnet.Model(TEXTS[0], threads=2)
        expected = model.generate("a", 20, seed=1)
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns if a process with threads forks
            child = os.fork()
        if child == 0:
            os.write(writer, model.generate("a", 20, seed=1).encode())
            os._exit(0)
        os.close(writer)
        with open(reader, encoding="utf-8") as pipe:
            self.assertEqual(pipe.read(), expected)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(model.generate("a", 20, seed=1), expected)

    def test_ctrl_c(self):
        work = {"images": (DIGITS, "model.sample(100_000, batch=1)"),
                # At a temperature of 0 this model repeats itself without end.
                "text": (TEXTS[0], "model.generate('a', 10**9, temperature=0)"),
                "pieces": (TEXTS[0], "for piece in model.generate('a', 10**9, temperature=0, stream=True): pass")}
        for name, (path, code) in work.items():
            with self.subTest(name):
                script = (f"import linnet\nmodel = linnet.Model({str(path)!r})\ntry:\n    print('begun', flush=True)\n"
                          f"    {code}\nexcept KeyboardInterrupt:\n    print('interrupted')\n")
                child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         text=True)
                self.assertEqual(child.stdout.readline(), "begun\n")
                child.send_signal(signal.SIGINT)
                out, err = child.communicate(timeout=300)
                self.assertEqual((child.returncode, out, err), (0, "interrupted\n", ""))

    def test_an_exit_with_everything_alive(self):
        script = f"""
import linnet, threading
model, digits = linnet.Model({str(TEXTS[0])!r}), linnet.Model({str(DIGITS)!r})
state = model.new_state(3)
pieces = model.generate('a', stream=True)
next(pieces)
begun = threading.Semaphore(0)

def work(call):
    call()
    begun.release()
    while True:
        call()

for call in (lambda: model.generate('a'), lambda: digits.sample(1), lambda: state.step([1, 2, 3])):
    threading.Thread(target=work, args=(call,), daemon=True).start()
    begun.acquire()
print('ok')
"""
        done = self.python(script)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ok\n", ""))


class RunTest(Case):
    def write(self, lines, config='{"task": "copy", "lr": 0.01}'):
        (self.dir / "metrics.jsonl").write_text("\n".join(lines))
        (self.dir / "config.json").write_text(config)

    def test_a_run(self):
        self.write(['{"step": 10, "seconds": 1.5, "lr": 0.01, "loss": 2.5}', '{"step": 10, "validation_loss": 2.25}',
                    '{"step": 20, "seconds": 3, "lr": 0.01, "loss": null, "note": "x"}', '{"step": 30, "sec'])
        run = linnet.read_run(self.dir)
        self.assertEqual(list(run.metrics), ["step", "seconds", "lr", "loss", "validation_loss"])
        self.assertEqual(run.metrics["step"].tolist(), [10, 10, 20])
        self.assertEqual((run.metrics["step"].dtype, run.metrics["loss"].dtype), (np.int64, np.float64))
        np.testing.assert_array_equal(run.metrics["loss"], [2.5, np.nan, np.nan])
        steps, values = run.curve("validation_loss")
        self.assertEqual((steps.tolist(), values.tolist()), ([10], [2.25]))
        self.assertEqual(run.settings, {"task": "copy", "lr": 0.01})

    def test_refusals(self):
        with self.assertRaisesRegex(linnet.InputError, "metrics.jsonl: No such file.*; name a folder that linnet"):
            linnet.read_run(self.dir)
        for lines in (["[1]", ""], ['{"step": 1}', "{", ""], ['{"loss": 1}'], ['{"step": -1}'], ['{"step": "1"}']):
            self.write(lines)
            with self.assertRaisesRegex(linnet.InputError, r"metrics.jsonl:\d: not a record of a training run"):
                linnet.read_run(self.dir)
        self.write(['{"step": 1, "loss": 1}'], config="[")
        with self.assertRaisesRegex(linnet.InputError, "config.json: not JSON"):
            linnet.read_run(self.dir)
        self.write(['{"step": 1, "loss": 1}'])
        with self.assertRaisesRegex(linnet.InputError, "has no metric 'los'; it has step, loss"):
            linnet.read_run(self.dir).curve("los")


class ReadmeTest(Case):
    def test_snippets(self):
        """Runs the README's blocks on the package, in a folder that has the models that they name."""
        page = (SOURCE / "python" / "README.md").read_text()
        blocks = [block for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
                  if "import torch" not in block]
        self.assertEqual(len(blocks), 5)
        (self.dir / "models").symlink_to(SOURCE / "models")
        run = self.dir / "runs" / "text"
        run.mkdir(parents=True)
        (run / "model.safetensors").write_bytes(TEXTS[0].read_bytes())
        (run / "config.json").write_text("{}")
        (run / "metrics.jsonl").write_text('{"step": 10, "seconds": 1, "bits_per_token": 2}\n')
        with wave.open(str(self.dir / "hello.wav"), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16000)
            out.writeframes(np.random.RandomState(1).randint(-9000, 9000, 16000).astype(np.int16).tobytes())
        done = self.python("\n".join(blocks))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)


if __name__ == "__main__":
    unittest.main()
