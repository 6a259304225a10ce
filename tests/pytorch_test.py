#!/usr/bin/env python3
"""linnet import and linnet export, and what PyTorch makes of their files.

    tests/pytorch_test.py BIN_DIR [unittest arguments]

Tests that need PyTorch run it in this Python or in Debian's (package python3-torch), and skip where
neither has it.
"""

import functools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cli_test  # noqa: E402
from cli_test import COPY_SPEC, IMAGE_SPEC, Case, random_tensors, safetensors, write_mnist  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
FIRST = "first_value.probability"

# In front of every script that runs in the Python that has torch. No numpy, no safetensors package.
PRELUDE = """
import collections, json, struct, sys, warnings
warnings.simplefilter("ignore")
import torch

def load(path):  # both readers of torch.load must take it
    plain, strict = torch.load(path), torch.load(path, weights_only=True)
    assert list(plain) == list(strict)
    for name in plain:
        assert torch.equal(plain[name], strict[name]), name
    return plain

def read_safetensors(path):
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = bytearray(data[8 + length + begin:8 + length + end])
            tensors[name] = torch.frombuffer(raw, dtype=torch.float32).reshape(entry["shape"])
    return tensors
"""


@functools.cache
def python_with_torch():
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run([python, "-c", "import torch"], check=True, capture_output=True)
            return python
        except (OSError, subprocess.CalledProcessError):
            pass
    return None


def read(path):
    """(tensors as bytes, metadata) of a .safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {name: (entry["shape"], data[8 + length:][slice(*entry["data_offsets"])])
               for name, entry in header.items()}
    return tensors, metadata


def differing(a, b):
    """Names, not bytes: unittest would take minutes to show how two models differ."""
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


class Torch(Case):
    def setUp(self):
        super().setUp()
        if python_with_torch() is None:
            self.skipTest("no Python here has torch; on Debian, install python3-torch")

    def torch(self, script, *arguments):
        done = subprocess.run(
            [python_with_torch(), "-c", PRELUDE + textwrap.dedent(script), *map(str, arguments)],
            cwd=self.dir, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_torch_loads_what_linnet_writes(self):
        for model in (self.images, self.copy):
            self.linnet("export", model, "--format", "pth", "--out", "a.pth")
            self.torch("""
                model, exported = read_safetensors(sys.argv[1]), load("a.pth")
                assert isinstance(exported, collections.OrderedDict)
                model.pop("first_value.probability", None)
                assert set(model) == set(exported)
                for name, tensor in exported.items():
                    assert tensor.dtype == torch.float32 and tensor.is_contiguous(), name
                    assert torch.equal(tensor, model[name]), name
                # A module of the reference would take it and save it.
                assert exported["predictor.weight"].add_(1).sum() != model["predictor.weight"].sum()
                """, model)

    def test_linnet_reads_what_torch_writes(self):
        """By every protocol, in every guise that a training script might save it."""
        self.torch("""
            model = read_safetensors(sys.argv[1])
            model.pop("first_value.probability")
            for protocol in (2, 3, 4, 5):
                torch.save(model, f"p{protocol}.pth", pickle_protocol=protocol)
            parameters = collections.OrderedDict(
                (name, torch.nn.Parameter(tensor.clone())) for name, tensor in model.items())
            torch.save(parameters, "parameters.pth")
            optimizer = torch.optim.Adam(parameters.values())
            sum(p.sum() for p in parameters.values()).backward()
            optimizer.step()
            torch.save({"model_state": model, "optimizer_state": optimizer.state_dict(), "epoch": 3,
                        "loss": torch.tensor(0.5)}, "checkpoint.pth")
            torch.save({"model": {"module." + name: tensor for name, tensor in model.items()},
                        "average": model}, "several.pth")
            views = {name: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor
                     for name, tensor in model.items()}
            assert not views["predictor.weight"].is_contiguous()
            whole = torch.zeros(1000)
            whole[100:100 + model["predictor.bias"].numel()] = model["predictor.bias"]
            views["predictor.bias"] = whole[100:100 + model["predictor.bias"].numel()]
            torch.save(views, "views.pth")
            torch.save({name: tensor.double() for name, tensor in model.items()}, "double.pth")
            """, self.images)
        expected = read(self.images)[0]
        del expected[FIRST]
        for name, *options in (("p2.pth",), ("p3.pth",), ("p4.pth",), ("p5.pth",),
                               ("parameters.pth",), ("checkpoint.pth",),
                               ("checkpoint.pth", "--key", "model_state"),
                               ("several.pth", "--key", "model"), ("views.pth",), ("double.pth",)):
            self.linnet("import", name, "--heads", "2", "--out", "b.safetensors", *options)
            tensors, _ = read(self.dir / "b.safetensors")
            del tensors[FIRST]
            self.assertEqual(differing(tensors, expected), [], name)
        self.refuses(["import", "several.pth", "--heads", "2", "--out", "c.safetensors"],
                     "--key: 'model', 'average'")

    def test_what_linnet_refuses_of_torch(self):
        self.torch("""
            import argparse
            x = {"x": torch.zeros(3)}
            torch.save(x, "legacy.pth", _use_new_zipfile_serialization=False)
            torch.save({"model": x, "args": argparse.Namespace(lr=1)}, "args.pth")
            torch.save(torch.nn.Linear(2, 3), "module.pth")
            torch.jit.script(torch.nn.Linear(2, 3)).save("script.pth")
            torch.save(torch.zeros(3), "tensor.pth")
            torch.save({"x": torch.zeros(3, dtype=torch.complex64)}, "complex.pth")
            torch.save({"x": torch.zeros(1).expand(10 ** 12)}, "expanded.pth")
            """)
        for name, fragment in (("legacy", "before 1.6"), ("args", "'argparse.Namespace'"),
                               ("module", "state_dict()"), ("script", "TorchScript"),
                               ("tensor", "holds a tensor"), ("complex", "ComplexFloatStorage"),
                               ("expanded", "x.contiguous()")):
            self.refuses(["import", f"{name}.pth", "--heads", "2", "--out", "a.safetensors"],
                         f"{name}.pth: ", fragment)


class RoundTrip(Case):
    def test_import_of_export_is_the_model(self):
        for model, options in ((self.images, ["--heads", "2"]), (self.copy, ["--heads", "2"])):
            before, metadata = read(model)
            before.pop(FIRST, None)
            spec = self.linnet_json("info", model)["spec"]
            for form in ("pth", "safetensors"):
                exported = self.dir / f"exported.{form}"
                self.linnet("export", model, "--format", form, "--out", exported)
                self.linnet("import", exported, "--out", "back.safetensors",
                            *(options if form == "pth" else []))
                after, _ = read(self.dir / "back.safetensors")
                after.pop(FIRST, None)
                self.assertEqual(differing(after, before), [])
                self.assertEqual(self.linnet_json("info", "back.safetensors")["spec"], spec)
                again = self.dir / f"again.{form}"
                self.linnet("export", "back.safetensors", "--format", form, "--out", again)
                self.assertTrue(again.read_bytes() == exported.read_bytes())

    def test_first_value_is_measured_or_uniform(self):
        data = write_mnist(self.dir / "mnist")
        self.linnet("export", self.images, "--format", "pth", "--out", "a.pth")
        command = ["import", "a.pth", "--heads", "2", "--out", "b.safetensors"]
        said = self.linnet_json(*command)
        self.assertEqual(said["first_value"], "uniform")
        shape, uniform = read(self.dir / "b.safetensors")[0][FIRST]
        self.assertEqual(uniform, memoryview(uniform)[:4].tobytes() * 256)
        self.assertEqual(self.linnet_json("info", "b.safetensors")["training"]["first_value"],
                         "uniform")
        self.assertIn("drawn uniformly", self.linnet(*command))

        said = self.linnet_json(*command, "--data", data)
        self.assertEqual(said["first_value"], "mnist: 12 training images")
        first = memoryview(read(self.dir / "b.safetensors")[0][FIRST][1]).cast("f").tolist()
        self.assertEqual(first, [1.0] + [0.0] * 255)  # digits begin dark
        self.linnet("sample", "b.safetensors", "--count", "1", "--out", "a.png")
        self.refuses([*command, "--data", self.dir / "nowhere"], "no such folder")

    def test_plain_safetensors(self):
        """The reference's names without a word of linnet."""
        tensors = random_tensors(IMAGE_SPEC)
        del tensors[FIRST]
        path = self.write("plain.safetensors", safetensors(IMAGE_SPEC, tensors, metadata={}))
        self.linnet("import", path, "--heads", "2", "--out", "b.safetensors")
        after, before = read(self.dir / "b.safetensors")[0], read(self.images)[0]
        del after[FIRST], before[FIRST]
        self.assertEqual(differing(after, before), [])

    def test_what_only_linnet_has(self):
        spec = {**IMAGE_SPEC, "norm_first": True, "pixel_above": True}
        tensors = random_tensors(spec)
        tensors["above_embedding.weight"] = ([257, 8], [0.25] * 257 * 8)
        path = self.write("m.safetensors", safetensors(spec, tensors))
        self.assertIn("not in the reference library: layer norms come first",
                      self.linnet("export", path, "--format", "pth", "--out", "a.pth"))
        self.linnet("import", "a.pth", "--heads", "2", "--norm-first", "--out", "b.safetensors")
        self.assertEqual(self.linnet_json("info", "b.safetensors")["spec"],
                         self.linnet_json("info", path)["spec"])


    def test_attention_that_a_pth_does_not_tell(self):
        for changes, told, options, taken in (
                (dict(feature_map="relu"), "feature map relu", [], "causal-linear, feature map elu"),
                (dict(attention="kernel", similarity="rbf"), "kernel, similarity rbf",
                 ["--attention", "kernel"], "kernel, similarity softmax"),
                (dict(attention="reformer", lsh_chunk=16),
                 "reformer (published), 4 rounds, 64 buckets, chunks of 16",
                 ["--attention", "reformer", "--lsh-buckets", "64", "--lsh-chunk", "16"],
                 "reformer (simple), 4 rounds, 64 buckets, chunks of 16")):
            spec = {**IMAGE_SPEC, **changes}
            path = self.write("m.safetensors", safetensors(spec, random_tensors(spec)))
            said = self.linnet("export", path, "--format", "pth", "--out", "a.pth")
            self.assertIn(told, said)
            self.assertIn("not in the reference library: ", said)
            self.assertIn(f"attention {taken}", self.linnet(
                "import", "a.pth", "--heads", "2", *options, "--out", "b.safetensors"))
            self.linnet("export", path, "--format", "safetensors", "--out", "a.safetensors")
            self.linnet("import", "a.safetensors", "--out", "b.safetensors")
            self.assertEqual(self.linnet_json("info", "b.safetensors")["spec"],
                             self.linnet_json("info", path)["spec"])

    def test_weights_that_are_no_numbers(self):
        tensors = random_tensors(IMAGE_SPEC)
        tensors["predictor.bias"] = ([30], [0.0] * 29 + [math.nan])
        path = self.write("nan.safetensors", safetensors(IMAGE_SPEC, tensors, metadata={}))
        self.refuses(["import", path, "--heads", "2", "--out", "b.safetensors"], path, "'predictor.bias'",
                     "no numbers")


class Page(Case):
    def test_its_commands(self):
        """Those of docs/from-fast-transformers.md, at the top of the source tree, which is linked here."""
        source = GOLDEN.parent.parent
        for folder in ("models", "tests"):
            (self.dir / folder).symlink_to(source / folder)
        page = (source / "docs" / "from-fast-transformers.md").read_text()
        commands = re.findall(r"^linnet (.*)$", page, re.MULTILINE)
        self.assertGreater(len(commands), 3)
        for command in commands:
            self.linnet(*command.split())
            again = self.dir / "digits-again.safetensors"
            if command.startswith("import digits"):
                self.assertEqual(self.linnet_json("info", again)["spec"],
                                 self.linnet_json("info", "models/digits.safetensors")["spec"])


class Import(Case):
    def test_files_are_known_by_their_content(self):
        self.linnet("export", self.images, "--format", "pth", "--out", "a.pth")
        self.linnet("export", self.images, "--format", "safetensors", "--out", "a.safetensors")
        (self.dir / "a.pth").rename(self.dir / "p.safetensors")
        (self.dir / "a.safetensors").rename(self.dir / "s.bin")
        self.linnet("import", "p.safetensors", "--heads", "2", "--out", "b.safetensors")
        self.linnet("import", "s.bin", "--out", "b.safetensors")
        for name in ("p.safetensors", "s.bin"):
            for arguments in (["info", name], ["sample", name, "--out", "a.png"]):
                self.refuses(arguments, name, "'linnet import' makes a model of it")

    def test_a_pipe_is_no_file(self):
        os.mkfifo(self.dir / "pipe")
        for arguments in (["import", "pipe", "--out", "a.safetensors"], ["info", "pipe"]):
            done = self.run_linnet(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn("pipe: not a regular file", done.stderr)

    def test_golden_model(self):
        said = self.linnet("import", GOLDEN / "image_model.pth", "--heads", "4", "--width", "8",
                           "--height", "8", "--out", "g.safetensors")
        self.assertIn("images of 8 x 8, 2 layers of 32, 4 heads", said)
        self.assertIn("taken as said: activation relu, attention causal-linear", said)
        tensors, golden = read(self.dir / "g.safetensors")[0], \
            read(GOLDEN / "image_model.safetensors")[0]
        self.assertEqual(len(tensors), 39)
        for name in set(tensors) - {FIRST}:
            self.assertEqual(tensors[name], golden["param." + name], name)
        info = self.linnet_json("info", "g.safetensors")
        self.assertEqual(info["training"]["imported_from"], "image_model.pth")

    def test_bad_usage(self):
        pth = GOLDEN / "image_model.pth"
        self.linnet("export", self.images, "--format", "safetensors", "--out", "e.safetensors")
        for arguments, *fragments in (
                (["import"], "--help"), (["import", pth], "--out"), (["export", self.images], "--out"),
                (["export", self.images, "--out", "a"], "--precision"),
                (["export", self.images, "--out", "a", "--precision", "int4"], "int8"),
                (["export", self.images, "--out", "a", "--precision", "int8", "--format", "pth"], "--format"),
                (["export", self.images, "--format", "onnx", "--out", "a"], "onnx"),
                (["import", pth, "--out", "a.safetensors"], "give --heads, a divisor of 32"),
                (["import", pth, "--out", "a.safetensors", "--heads", "5"], "cannot share 32"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4"], "--width", "64 bytes"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--width", "9", "--height",
                  "8"], "have 72"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--activation", "tanh"],
                 "tanh"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--width", "8", "--height",
                  "8", "--attention", "nosuch"], "unknown attention 'nosuch'"),
                (["import", pth, "--out", "a.safetensors", "--key", "model"], "under 'model'"),
                (["import", self.images, "--out", "a.safetensors", "--heads", "2"],
                 "is a linnet model already"),
                (["import", "e.safetensors", "--out", "a.safetensors", "--heads", "2"],
                 "leave out --heads"),
                (["import", "e.safetensors", "--out", "a.safetensors", "--key", "x"],
                 "leave out --key"),
                (["import", "e.safetensors", "--out", "e.safetensors"], "is the file to import"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--width", "8", "--height",
                  "8", "--dataset", "mnist"], "--dataset", "--data"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--lsh-rounds", "2"],
                 "--lsh-rounds is of --attention reformer"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--attention", "reformer",
                  "--lsh-buckets", "0"], "--lsh-buckets"),
                (["import", "no.pth", "--out", "a.safetensors", "--heads", "2"], "no such file"),
                (["import", self.dir, "--out", "a.safetensors"], "a folder"),
                (["import", self.copy, "--out", "no/a.safetensors"], "does not exist"),
                (["export", self.images, "--format", "pth", "--out", self.images],
                 "is the model itself"),
                (["export", pth, "--format", "pth", "--out", "a.pth"], str(pth))):
            self.refuses(arguments, *fragments)

    def test_names_every_tensor_that_does_not_fit(self):
        tensors = random_tensors(COPY_SPEC)
        tensors["head.weight"] = tensors.pop("predictor.weight")
        tensors["transformer.layers.0.attention.inner_attention.feature_map.omega"] = ([2], [0, 0])
        path = self.write("odd.safetensors", safetensors(COPY_SPEC, tensors, metadata={}))
        self.refuses(["import", path, "--heads", "2", "--out", "a.safetensors"], path,
                     "lacks 'predictor.weight'", "'head.weight'", "feature_map.omega'", "random feature map")

    def test_damaged_files(self):
        whole = (GOLDEN / "image_model.pth").read_bytes()
        for name, data in (("cut", whole[:70000]), ("empty", b""), ("flipped", whole[:60010] +
                           bytes([whole[60010] ^ 1]) + whole[60011:]), ("text", b"hello, world")):
            path = self.write(f"{name}.pth", data)
            self.refuses(["import", path, "--heads", "4", "--width", "8", "--height", "8", "--out",
                          "a.safetensors"], path)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        cli_test.BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
