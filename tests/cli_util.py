"""Shared by tests of the linnet program: writes model files and a tiny synthetic MNIST, reads PNG, runs linnet."""

import array
import gzip
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

import train_forks

BIN = pathlib.Path("build/release/bin").resolve()  # main() sets it

# ---------------------------------------------------------------------------------------------------
# Model files, written from the description of the format and not by linnet: a bug in linnet's writer
# could hide a bug in its reader.

IMAGE_SPEC = dict(task="images", attention="causal-linear", feature_map="elu", layers=2, heads=2,
                  query_dim=4, value_dim=4, d_model=16, d_ff=32, vocabulary=256, max_length=783,
                  value_embedding=8, head="logistics", mixtures=10, width=28, height=28, channels=1)
COPY_SPEC = dict(task="copy", layers=1, heads=2, query_dim=4, value_dim=4, d_model=16, d_ff=32,
                 vocabulary=11, max_length=41, value_embedding=8, head="categorical", classes=11)


def tensor_shapes(spec):
    d, ff, vocabulary = spec["d_model"], spec["d_ff"], spec["vocabulary"]
    qk, v = spec["heads"] * spec["query_dim"], spec["heads"] * spec["value_dim"]
    outputs = spec["classes"] if spec["head"] == "categorical" else 3 * spec["mixtures"]
    shapes = {"value_embedding.weight": [vocabulary, spec["value_embedding"]],
              "pos_embedding.pe": [1, spec["max_length"], d - spec["value_embedding"]]}
    width = d
    if (tokens := spec.get("patch", 1)) > 1:
        width, hidden = spec["patch_width"], spec["patch_d_ff"]
        shapes["pos_embedding.pe"] = [1, spec["max_length"], width - spec["value_embedding"]]
        shapes |= {"patch.in.weight": [d, tokens * width], "patch.in.bias": [d],
                   "patch.out.weight": [tokens * width, d], "patch.out.bias": [tokens * width],
                   "patch.linear1.weight": [hidden, width], "patch.linear1.bias": [hidden],
                   "patch.linear2.weight": [width, hidden], "patch.linear2.bias": [width]}
        if taps := spec.get("patch_convolution", 0):
            shapes |= {"patch.convolution.weight": [taps, width], "patch.convolution.bias": [width]}
        for norm in ("norm1", "norm2"):
            shapes |= {f"patch.{norm}.weight": [width], f"patch.{norm}.bias": [width]}
    if channels := spec.get("stem_channels", 0):  # gray: causal windows of 4 x 7 and 3 x 5, with 24 and 13 inputs
        shapes |= {"stem.features.0.weight": [channels, 24], "stem.features.0.bias": [channels],
                   "stem.output.0.weight": [width, 13 * channels], "stem.output.0.bias": [width]}
    linear = {}
    for i in range(spec["layers"]):
        layer = f"transformer.layers.{i}."
        linear.update({layer + "attention.query_projection": (qk, d),
                       layer + "attention.key_projection": (qk, d),
                       layer + "attention.value_projection": (v, d),
                       layer + "attention.out_projection": (d, v),
                       layer + "linear1": (ff, d), layer + "linear2": (d, ff)})
        for norm in ("norm1", "norm2"):
            shapes |= {f"{layer}{norm}.weight": [d], f"{layer}{norm}.bias": [d]}
    linear["predictor"] = (outputs, width)
    for name, (rows, columns) in linear.items():
        shapes |= {name + ".weight": [rows, columns], name + ".bias": [rows]}
    shapes |= {"transformer.norm.weight": [d], "transformer.norm.bias": [d]}
    if spec["task"] == "images":
        shapes["first_value.probability"] = [vocabulary]
    return shapes


def random_tensors(spec, seed=1):
    rng = random.Random(seed)
    tensors = {}
    for name, shape in tensor_shapes(spec).items():
        size = math.prod(shape)
        values = [rng.uniform(-0.3, 0.3) for _ in range(size)]
        if "norm" in name and name.endswith("weight"):
            values = [1.0] * size
        if name == "first_value.probability":
            values = [1.0 / size] * size
        tensors[name] = (shape, values)
    return tensors


def safetensors(spec, tensors, metadata=None, change_header=lambda header: None, repeat=False):
    """The bytes of a safetensors file. With `repeat`, `tensors` has one number per tensor, which fills the tensor."""
    header, data = {}, bytearray()
    for name, (shape, values) in tensors.items():
        raw = array.array("f", values).tobytes() * (math.prod(shape) if repeat else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header["__metadata__"] = {"linnet": json.dumps(spec)} if metadata is None else metadata
    change_header(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def model(spec, **changes):
    return safetensors({**spec, **changes}, random_tensors({**spec, **changes}))


# ---------------------------------------------------------------------------------------------------
# IDX files and PNG.


# An IDX file, MNIST's format. kind 8: unsigned bytes.
def idx(shape, data, kind=8):
    return struct.pack(">HBB", 0, kind, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + data


def digits(count, seed):
    """Images with long dark runs and a bright patch, as in MNIST: bytes [count, 784]."""
    rng = random.Random(seed)
    images = bytearray(count * 784)
    for i in range(count):
        for _ in range(120):
            images[i * 784 + rng.randrange(200, 600)] = rng.randrange(256)
    return bytes(images)


def write_mnist(folder, images=12):
    folder.mkdir()
    for split, seed in (("train", 1), ("t10k", 2)):
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(
            gzip.compress(idx([images, 28, 28], digits(images, seed))))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(idx([images], bytes(i % 10 for i in range(images)))))
    return folder


def read_png(path):
    """Returns (width, height, rows) of an 8-bit gray PNG."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at:at + 4]), data[at + 4:at + 8]
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", body[:10])
            assert (depth, color) == (8, 0)
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    raw, rows, above = zlib.decompress(packed), [], bytes(width)
    for y in range(height):
        kind, line = raw[y * (width + 1)], bytearray(raw[y * (width + 1) + 1:(y + 1) * (width + 1)])
        for x in range(width):
            left, up, corner = (line[x - 1], above[x], above[x - 1]) if x else (0, above[x], 0)
            guess = left + up - corner
            paeth = min((left, up, corner), key=lambda c: abs(guess - c))
            line[x] = (line[x] + (0, left, up, (left + up) // 2, paeth)[kind]) % 256
        rows.append(bytes(line))
        above = line
    return width, height, rows


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet-cli-"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.images = self.write("images.safetensors", model(IMAGE_SPEC))
        self.copy = self.write("copy.safetensors", model(COPY_SPEC))

    def write(self, name, data):
        path = self.dir / name
        path.write_bytes(data)
        return path

    def run_linnet(self, *arguments, env=None, program=None):
        if not env and program is None and (BIN / "train_forks").exists():
            return train_forks.run(BIN, *arguments, cwd=self.dir)
        return subprocess.run([program or BIN / "linnet", *map(str, arguments)], cwd=self.dir,
                              env={**os.environ, **(env or {})}, capture_output=True, text=True,
                              timeout=300)

    def linnet(self, *arguments, **how):
        """Runs a command that must succeed; returns its stdout."""
        done = self.run_linnet(*arguments, **how)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done.stdout

    def linnet_json(self, *arguments, **how):
        return json.loads(self.linnet(*arguments, "--json", **how))

    def files(self):
        return {path: path.read_bytes() for path in self.dir.rglob("*") if path.is_file()}

    def refuses(self, arguments, *fragments, code=2, **how):
        """Expects failure: one line on stderr with these fragments, this exit code, and no file written."""
        before = self.files()
        done = self.run_linnet(*arguments, **how)
        said = f"{arguments}: exit {done.returncode}, stdout {done.stdout!r}, stderr {done.stderr!r}"
        self.assertEqual(done.returncode, code, said)
        self.assertEqual(done.stderr.count("\n"), 1, said)
        self.assertRegex(done.stderr, r"^linnet( \w+)?: ", said)
        self.assertEqual(done.stdout, "", said)
        for fragment in fragments:
            self.assertIn(str(fragment), done.stderr, said)
        self.assertEqual(self.files(), before, said)


def main():
    """Runs the tests of the calling file, whose arguments are BIN_DIR [unittest arguments]."""
    global BIN
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
