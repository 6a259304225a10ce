#!/usr/bin/env python3
"""Tests of linnet import and linnet export against PyTorch.

    tests/pytorch_test.py BIN_DIR [unittest arguments]

Tests that need PyTorch run it in this Python or in Debian's (package python3-torch), and are skipped if
neither has it.
"""

import functools
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cli_util  # noqa: E402
from cli_util import COPY_SPEC, IMAGE_SPEC, Case, random_tensors, safetensors, write_mnist  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
FIRST = "first_value.probability"

# Precedes every script that runs in the Python with torch. Needs neither numpy nor safetensors.
PRELUDE = """
import collections, json, struct, sys, warnings
warnings.simplefilter("ignore")
import torch

def load(path):  # both modes of torch.load must read it
    plain, strict = torch.load(path, weights_only=False), torch.load(path, weights_only=True)
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
    """Returns ({name: (shape, bytes)}, metadata) of a .safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {name: (entry["shape"], data[8 + length:][slice(*entry["data_offsets"])])
               for name, entry in header.items()}
    return tensors, metadata


def differing(a, b):
    """The names of tensors that differ. unittest would take minutes to compare and print the bytes."""
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
                # The tensors are writable, as modules need them.
                assert exported["predictor.weight"].add_(1).sum() != model["predictor.weight"].sum()
                """, model)

    def test_linnet_reads_what_torch_writes(self):
        """Files of every pickle protocol, in the forms that training scripts save."""
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
            torch.save({"model": {"net": model}, "ema": {"net": model}}, "shared.pth")
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
                               ("several.pth", "--key", "model"), ("shared.pth", "--key", "ema.net"), ("views.pth",),
                               ("double.pth",)):
            self.linnet("import", name, "--heads", "2", "--out", "b.safetensors", *options)
            tensors, _ = read(self.dir / "b.safetensors")
            del tensors[FIRST]
            self.assertEqual(differing(tensors, expected), [], name)
        self.refuses(["import", "several.pth", "--heads", "2", "--out", "c.safetensors"],
                     "--key: 'model', 'average'")

    def test_torch_files_that_linnet_refuses(self):
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
        self.assertEqual(first, [1.0] + [0.0] * 255)  # digits begin with a dark pixel
        self.linnet("sample", "b.safetensors", "--count", "1", "--out", "a.png")
        self.refuses([*command, "--data", self.dir / "nowhere"], "no such folder")

    def test_plain_safetensors(self):
        """Imports a file with fast-transformers' tensor names and without linnet's metadata."""
        tensors = random_tensors(IMAGE_SPEC)
        del tensors[FIRST]
        path = self.write("plain.safetensors", safetensors(IMAGE_SPEC, tensors, metadata={}))
        self.linnet("import", path, "--heads", "2", "--out", "b.safetensors")
        after, before = read(self.dir / "b.safetensors")[0], read(self.images)[0]
        del after[FIRST], before[FIRST]
        self.assertEqual(differing(after, before), [])

    def test_models_that_fast_transformers_cannot_express(self):
        spec = {**IMAGE_SPEC, "norm_first": True, "pixel_above": True}
        tensors = random_tensors(spec)
        tensors["above_embedding.weight"] = ([257, 8], [0.25] * 257 * 8)
        path = self.write("m.safetensors", safetensors(spec, tensors))
        self.assertIn("not in fast-transformers: layer norms come before attention",
                      self.linnet("export", path, "--format", "pth", "--out", "a.pth"))
        self.linnet("import", "a.pth", "--heads", "2", "--norm-first", "--out", "b.safetensors")
        self.assertEqual(self.linnet_json("info", "b.safetensors")["spec"],
                         self.linnet_json("info", path)["spec"])


    def test_attention_options_missing_in_a_pth(self):
        for changes, told, options, taken in (
                (dict(feature_map="relu"), "feature map relu", ["--feature-map", "relu"],
                 "causal-linear, feature map relu"),
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
            self.assertIn("not in fast-transformers: ", said)
            self.assertIn(f"attention {taken}", self.linnet(
                "import", "a.pth", "--heads", "2", *options, "--out", "b.safetensors"))
            self.linnet("export", path, "--format", "safetensors", "--out", "a.safetensors")
            self.linnet("import", "a.safetensors", "--out", "b.safetensors")
            self.assertEqual(self.linnet_json("info", "b.safetensors")["spec"],
                             self.linnet_json("info", path)["spec"])

    def test_non_finite_weights(self):
        tensors = random_tensors(IMAGE_SPEC)
        tensors["predictor.bias"] = ([30], [0.0] * 29 + [math.nan])
        path = self.write("nan.safetensors", safetensors(IMAGE_SPEC, tensors, metadata={}))
        self.refuses(["import", path, "--heads", "2", "--out", "b.safetensors"], path, "'predictor.bias'",
                     "NaN")

    def test_softmax_temp(self):
        for attention in ("full", "reformer"):
            spec = {**IMAGE_SPEC, "attention": attention, "softmax_scale": 0.75}
            if attention == "reformer":
                spec |= {"lsh_rounds": 4, "lsh_buckets": 126, "lsh_chunk": 32, "lsh_variant": "simple"}
            path = self.write("m.safetensors", safetensors(spec, random_tensors(spec)))
            self.assertIn("softmax_temp 0.75",
                          self.linnet("export", path, "--format", "pth", "--out", "a.pth"))
            said = self.linnet_json("export", path, "--format", "pth", "--out", "a.pth")
            self.assertEqual((said["softmax_temp"], said["activation"]), (0.75, "relu"))
            command = ["import", "a.pth", "--heads", "2", "--attention", attention, "--softmax-temp", "0.75",
                       "--out", "b.safetensors"]
            self.assertIn("softmax_temp 0.75", self.linnet(*command))
            self.assertEqual(self.linnet_json("info", "b.safetensors")["spec"],
                             self.linnet_json("info", path)["spec"])

    def test_random_feature_maps(self):
        for name, columns, options in (("rff", 6, []), ("favor", 12, ["--features", "12"])):
            spec = {**IMAGE_SPEC, "feature_map": name, "features": 12}
            tensors = random_tensors(spec)
            rng = random.Random(3)
            for i in range(spec["layers"]):
                tensors[f"transformer.layers.{i}.attention.inner_attention.feature_map.omega"] = (
                    [4, columns], [rng.gauss(0, 1) for _ in range(4 * columns)])
            path = self.write("m.safetensors", safetensors(spec, tensors))
            self.linnet("export", path, "--format", "pth", "--out", "a.pth")
            command = ["import", "a.pth", "--heads", "2", "--feature-map", name, "--out", "b.safetensors"]
            self.linnet(*command, *options)
            self.assertEqual(self.linnet_json("info", "b.safetensors")["spec"],
                             self.linnet_json("info", path)["spec"])
            after, before = read(self.dir / "b.safetensors")[0], read(path)[0]
            del after[FIRST], before[FIRST]
            self.assertEqual(differing(after, before), [])
            # 12 columns also fit 24 features: fast-transformers' Favor uses each column with both signs.
            if options:
                self.refuses(command, "omega has 12 columns", "give --features")
                self.linnet(*command, "--features", "24")
                shape, _ = read(self.dir / "b.safetensors")[0][
                    "transformer.layers.1.attention.inner_attention.feature_map.omega"]
                self.assertEqual(shape, [4, 24])
                self.linnet("sample", "b.safetensors", "--count", "1", "--out", "a.png")


TEXT_SPEC = {**COPY_SPEC, "task": "text", "unit": "byte", "vocabulary": 259, "classes": 259, "positions": "added",
             "value_embedding": 16, "max_length": 24, "activation": "gelu"}
LETTERS = "etaoin shrdlu\n"


def text_tensors(spec, seed=1):
    """Random tensors of a model whose position embedding is added or absent; for an encoder-decoder, of both stacks."""
    tensors = random_tensors({**spec, "network": "transformer"}, seed)
    if spec["positions"] == "added":
        length = spec["max_length"]
        tensors["pos_embedding.pe"] = ([1, length, spec["d_model"]], [
            (math.sin, math.cos)[i % 2](t / 10000 ** (i // 2 * 2 / spec["d_model"]))
            for t in range(length) for i in range(spec["d_model"])])
    else:
        del tensors["pos_embedding.pe"]
    if spec.get("tied"):
        del tensors["value_embedding.weight"]
    if spec.get("network") == "encoder-decoder":
        stack = {name: tensors.pop(name) for name in list(tensors) if name.startswith("transformer.")}
        for name, tensor in stack.items():
            name = name.removeprefix("transformer")
            tensors["encoder" + name] = tensor
            if ".attention." in name:
                for attention in (".self_attention.", ".cross_attention."):
                    tensors["decoder" + name.replace(".attention.", attention)] = tensor
            else:
                tensors["decoder" + name] = tensor
            if ".norm2." in name:
                tensors["decoder" + name.replace(".norm2.", ".norm3.")] = tensor
    return tensors


class Text(Case):
    def setUp(self):
        super().setUp()
        self.write("letters.txt", LETTERS.encode())
        self.write("text.txt", b"the rest is in the trees, he said; the line ends here\n" * 20)
        self.letters = {**TEXT_SPEC, "unit": "character", "characters": LETTERS,
                        "vocabulary": len(LETTERS) + 3, "classes": len(LETTERS) + 3}

    def bits(self, model):
        return self.linnet_json("eval", model, "--data", "text.txt")["bits_per_token"]

    def round_trip(self, model, *options):
        """Exports a model and imports it again, unchanged; returns the output of the import."""
        self.linnet("export", model, "--format", "pth", "--out", "a.pth")
        said = self.linnet("import", "a.pth", "--heads", "2", "--out", "b.safetensors", *options)
        self.assertEqual(self.linnet_json("info", "b.safetensors")["spec"],
                         self.linnet_json("info", model)["spec"])
        self.assertEqual(differing(read(self.dir / "b.safetensors")[0], read(model)[0]), [])
        return said

    def test_bytes_and_characters(self):
        gelu = ["--activation", "gelu"]
        for changes, options, said in (
                ({}, gelu, "text, 256 bytes"),
                ({"positions": "sequence"}, [*gelu, "--context", "24"], "a context of 24"),
                ({"tied": True}, gelu, "text, 256 bytes"),
                (self.letters, [*gelu, "--characters", "letters.txt"], "text, 14 characters"),
                ({**self.letters, "tied": True}, [*gelu, "--characters", "letters.txt"],
                 "text, 14 characters")):
            spec = {**TEXT_SPEC, **changes}
            path = self.write("m.safetensors", safetensors(spec, text_tensors(spec)))
            self.assertIn(said, self.round_trip(path, *options))
            self.assertEqual(self.bits("b.safetensors"), self.bits(path))

    def test_trained_models(self):
        """Exports and imports models that linnet train text wrote."""
        if not (cli_util.BIN / "linnet-train").exists():
            self.skipTest("linnet-train is not built")
        for unit, options in (("byte", []), ("character", ["--characters", "characters.txt"])):
            self.linnet("train", "text", "--data", "text.txt", "--unit", unit, "--context", "16", "--layers", "1",
                        "--heads", "2", "--d-model", "16", "--batch", "4", "--steps", "20", "--threads", "1",
                        "--out", unit)
            model = self.dir / unit / "model.safetensors"
            spec = self.linnet_json("info", model)["spec"]
            self.write("characters.txt", spec.get("characters", "").encode())
            flags = ["--norm-first"] if spec["norm_first"] else []
            self.round_trip(model, "--activation", spec["activation"], *flags, *options)
            self.assertEqual(self.bits("b.safetensors"), self.bits(model))

    def test_vocabularies_without_special_tokens(self):
        for changes, options, added in (({}, [], 0.0),
                                        ({**self.letters, "tied": True}, ["--characters", "letters.txt"], 0.0)):
            spec = {**TEXT_SPEC, **changes}
            tensors = text_tensors(spec)
            for name in ("value_embedding.weight", "predictor.weight", "predictor.bias"):
                if name in tensors:
                    shape, values = tensors[name]
                    row = math.prod(shape[1:])
                    values[:3 * row] = [-1e9 if name == "predictor.bias" else added] * 3 * row
            whole = self.write("m.safetensors", safetensors(spec, tensors))
            own = dict(tensors)
            for name in ("value_embedding.weight", "predictor.weight", "predictor.bias"):
                if name in tensors:
                    shape, values = tensors[name]
                    own[name] = ([shape[0] - 3, *shape[1:]], values[3 * math.prod(shape[1:]):])
            path = self.write("own.safetensors", safetensors(spec, own, metadata={}))
            command = ["import", path, "--heads", "2", "--activation", "gelu", *options, "--out", "b.safetensors"]
            self.assertIn("linnet adds its own, which are never sampled", self.linnet(*command))
            self.assertTrue(self.linnet_json(*command)["special_tokens_added"])
            self.assertIn("added", self.linnet_json("info", "b.safetensors")["training"]["special_tokens"])
            self.assertEqual(differing(read(self.dir / "b.safetensors")[0], read(whole)[0]), [])
            bits = self.bits("b.safetensors")
            self.assertEqual(bits, self.bits(whole))
            for precision in ("bf16", "int8"):  # the added rows are zero, the added biases -1e9
                self.linnet("export", "b.safetensors", "--precision", precision, "--out", "n.safetensors")
                self.assertAlmostEqual(self.bits("n.safetensors"), bits, delta=0.05)

    def test_an_encoder_and_a_decoder(self):
        spec = {**self.letters, "task": "couplet", "network": "encoder-decoder"}
        path = self.write("m.safetensors", safetensors(spec, text_tensors(spec)))
        self.assertIn("couplet, 14 characters",
                      self.round_trip(path, "--activation", "gelu", "--characters", "letters.txt"))
        self.linnet("couplet", "b.safetensors", "shore")
        self.linnet("export", path, "--format", "safetensors", "--out", "a.safetensors")
        self.linnet("import", "a.safetensors", "--out", "b.safetensors")
        self.assertEqual(differing(read(self.dir / "b.safetensors")[0], read(path)[0]), [])

    def test_bad_characters(self):
        path = self.write("m.safetensors", safetensors(self.letters, text_tensors(self.letters), metadata={}))
        command = ["import", path, "--heads", "2", "--out", "b.safetensors"]
        self.refuses(command, "give --characters")
        for name, text, fragment in (("short", b"abc", "--characters has 3, or 6"), ("empty", b"", "is empty"),
                                     ("latin", b"\xe9t\xe9", "is not UTF-8: byte 0")):
            self.refuses([*command, "--characters", self.write(name, text)], fragment)
        self.refuses([*command, "--characters", "nowhere"], "nowhere", "no such file")

    def test_parts_of_models(self):
        """The error says what the file holds and why it cannot be imported."""
        pair = {**self.letters, "task": "couplet", "network": "encoder-decoder"}
        for spec, keep, fragment in (
                (pair, "decoder.", "holds a decoder, which cannot be imported: linnet imports whole models"),
                (TEXT_SPEC, "transformer.", "holds a stack of 1 layer alone")):
            tensors = {name.removeprefix(keep): tensor for name, tensor in text_tensors(spec).items()
                       if name.startswith(keep)}
            path = self.write("part.safetensors", safetensors(spec, tensors, metadata={}))
            self.refuses(["import", path, "--heads", "2", "--out", "b.safetensors"], fragment,
                         "with value_embedding and predictor")


class Page(Case):
    def test_its_commands(self):
        """Runs the commands of docs/from-fast-transformers.md in a folder linked to the source tree."""
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
                self.refuses(arguments, name, "convert it with 'linnet import'")

    def test_refuses_a_pipe(self):
        os.mkfifo(self.dir / "pipe")
        for arguments in (["import", "pipe", "--out", "a.safetensors"], ["info", "pipe"]):
            done = self.run_linnet(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn("pipe: not a regular file", done.stderr)

    def test_golden_model(self):
        said = self.linnet("import", GOLDEN / "image_model.pth", "--heads", "4", "--width", "8",
                           "--height", "8", "--out", "g.safetensors")
        self.assertIn("images of 8 x 8, gray, 2 layers of 32, 4 heads", said)
        self.assertIn("taken from the options: activation relu, attention causal-linear", said)
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
                 "--lsh-rounds applies only to --attention reformer"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--softmax-temp", "2"],
                 "--softmax-temp applies only to --attention full or reformer"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--attention", "full", "--feature-map",
                  "elu"], "--feature-map applies only to --attention causal-linear or linear"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--feature-map", "sine"],
                 "unknown feature map 'sine'"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--task", "speech"], "--task"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--task", "text"],
                 "those of images, not of --task text"),
                (["import", pth, "--out", "a.safetensors", "--heads", "4", "--attention", "reformer",
                  "--lsh-buckets", "0"], "--lsh-buckets"),
                (["import", "no.pth", "--out", "a.safetensors", "--heads", "2"], "no such file"),
                (["import", self.dir, "--out", "a.safetensors"], "a folder"),
                (["import", self.copy, "--out", "no/a.safetensors"], "does not exist"),
                (["export", self.images, "--format", "pth", "--out", self.images],
                 "is the model itself"),
                (["export", pth, "--format", "pth", "--out", "a.pth"], str(pth))):
            self.refuses(arguments, *fragments)

    def test_names_every_mismatched_tensor(self):
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
        cli_util.BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
