#!/usr/bin/env python3
"""Tests every mixer with the tasks images and speech: trains two updates, exports, evaluates and generates, in each
precision. A mixer that a task does not allow must be refused before the first update. train_test.py tests copy,
text_test.py text and couplets.

    tests/mixers_test.py BIN_DIR [unittest arguments]

The list of mixers comes from `linnet info --mixers`, their feature maps and variants from error messages of
`linnet train`. So a new mixer needs no line here.
"""

import array
import gzip
import json
import math
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import wave

import train_forks

BIN = pathlib.Path("build/release/bin").resolve()

TINY = ["--layers", 2, "--heads", 2, "--d-model", 16, "--batch", 2, "--steps", 2, "--threads", 1]
# {mixer: the flag that selects its variant}.
FORMS = {"kernel": "--similarity", "reformer": "--lsh-variant"}
# Flags of reformer that give short sequences several chunks; other mixers ignore them.
HASHING = ["--lsh-rounds", 2, "--lsh-buckets", 4, "--lsh-chunk", 8]
NARROW = ("bf16", "int8")


def run(*args):
    return train_forks.run(BIN, *args)


def mixers():
    """The rows of `linnet info --mixers`, as dicts by column heading."""
    lines = run("info", "--mixers").stdout.splitlines()
    table = [[cell.strip().strip("`") for cell in line.strip().strip("|").split("|")] for line in lines]
    return [dict(zip(table[0], row)) for row in table[2:]]


def choices(flag):
    """The values of a flag of `linnet train`, parsed from the error message for an invalid value."""
    refused = run("train", "copy", flag, "nosuch", "--out", "/nonexistent/never").stderr
    listed = re.search(r"choose (?:one of )?(.*)", refused.strip())
    assert listed, refused
    return re.split(r", | or ", listed[1])


def variants():
    """(mixer, flags) for every mixer with each of its feature maps or variants."""
    for mixer in mixers():
        kind = mixer["kind"]
        flag = "--feature-map" if mixer["feature map"] == "yes" else FORMS.get(kind)
        for choice in choices(flag) if flag else (None,):
            yield mixer, ["--attention", kind, *([flag, choice] if flag else []), *HASHING]


def write_mnist(folder, images=4):
    """Writes noise images in MNIST's file format."""
    folder.mkdir()
    for split, seed in (("train", 1), ("t10k", 2)):
        pixels = random.Random(seed).randbytes(images * 784)
        for kind, head, body in (("images-idx3", struct.pack(">HBBIII", 0, 8, 3, images, 28, 28), pixels),
                                 ("labels-idx1", struct.pack(">HBBI", 0, 8, 1, images), bytes(images))):
            (folder / f"{split}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + body))


def write_tones(folder, name, count):
    """Writes recordings of two tones, 0.4 to 0.5 seconds each, and a manifest; returns the manifest's path."""
    lines = []
    for i in range(count):
        samples = array.array("h", (int(9000 * math.sin(2 * math.pi * (350 if t < 3000 else 900) * t / 16000))
                                    for t in range(6400 + 200 * i)))
        path = folder / f"{name}{i}.wav"
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16000)
            out.writeframes(samples.tobytes())
        lines.append(json.dumps({"audio": path.name, "phones": "AH B"}) + "\n")
    manifest = folder / f"{name}.jsonl"
    manifest.write_text("".join(lines))
    return manifest


class Mixers(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_mixers_test."))
        self.addCleanup(shutil.rmtree, self.dir)

    def ok(self, *args):
        done = run(*args)
        self.assertEqual(done.returncode, 0, (args, done.stderr))
        return done.stdout

    def refused(self, out, *args):
        """Expects a usage error with a one-line reason and no file written; returns the line."""
        done = run("train", *args, "--out", out)
        self.assertEqual(done.returncode, 2, (args, done.stderr))
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertFalse(out.exists(), args)
        return lines[0]

    def train(self, name, *args):
        """Trains for two updates, whose records must be finite; returns {precision: model file} and the last
        validation record."""
        out = self.dir / name
        self.ok("train", *args, "--log-every", 1, "--out", out)
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        updates = [record for record in records if "lr" in record]
        self.assertEqual([record["step"] for record in updates], [1, 2], args)
        for record in updates:
            self.assertTrue(all(math.isfinite(x) for x in record.values() if isinstance(x, float)), record)
        models = {"f32": out / "model.safetensors"}
        for precision in NARROW:
            models[precision] = out / f"{precision}.safetensors"
            self.ok("export", models["f32"], "--precision", precision, "--out", models[precision])
        return models, records[-1]

    def near(self, values, delta):
        """values: {precision: value}. Expects each within `delta` of the f32 value, relative to it."""
        for value in values.values():
            self.assertTrue(math.isfinite(value), values)
            self.assertAlmostEqual(value, values["f32"], delta=delta * abs(values["f32"]))

    def test_images(self):
        data = self.dir / "mnist"
        write_mnist(data)
        task = ("images", *TINY, "--data", data, "--train-images", 2, "--validation-images", 1)
        trained = set()
        for i, (mixer, flags) in enumerate(variants()):
            name = f"images{i}"
            if mixer["causal"] == "–":
                self.assertIn(f"needs causal attention, which '{mixer['kind']}' is not",
                              self.refused(self.dir / name, *task, *flags))
                continue
            trained.add(mixer["kind"])
            models, validation = self.train(name, *task, *flags)
            bits = {}
            for precision, model in models.items():
                measured = json.loads(self.ok("eval", model, "--data", data, "--limit", 1, "--json"))
                self.assertEqual(measured["precision"], precision)
                bits[precision] = measured["bits_per_dim"]
                picture = model.with_suffix(".png")
                self.ok("complete", model, "--data", data, "--rows-known", 27, "--count", 1, "--out", picture)
                self.assertTrue(picture.exists())
                if precision == "f32" and mixer["state of a sequence"] == "constant":
                    self.ok("sample", model, "--count", 1, "--out", picture)
            self.near(bits, 0.05)
            self.assertAlmostEqual(bits["f32"], validation["validation_bits_per_dim"], delta=1e-3)
        self.assertLessEqual({"causal-linear", "full"}, trained)

    def test_speech(self):
        if not (BIN / "linnet-speech").exists():
            self.skipTest("no linnet-speech")
        train, validation = write_tones(self.dir, "train", 2), write_tones(self.dir, "validation", 1)
        task = ("speech", "--preset", "small", *TINY, "--convolution", 3, "--data", train, "--validation", validation)
        sound = self.dir / "validation0.wav"
        trained = set()
        for i, (mixer, flags) in enumerate(variants()):
            trained.add(mixer["kind"])
            models, last = self.train(f"speech{i}", *task, *flags)
            likelihoods = {}
            for precision, model in models.items():
                measured = json.loads(self.ok("eval", model, "--data", validation, "--json"))
                self.assertEqual((measured["utterances"], measured["precision"]), (1, precision))
                heard = json.loads(self.ok("transcribe", model, sound, "--json"))[0]
                self.assertEqual(heard["remarks"], [])
                likelihoods[precision] = heard["log_probability"]
                if precision == "f32":
                    self.assertAlmostEqual(measured["phone_error_rate"], last["validation_phone_error_rate"])
            self.near(likelihoods, 0.1)
        self.assertLessEqual({"linear", "causal-linear", "full"}, trained)
        # A bidirectional convolution of even width has no center.
        self.assertIn("--convolution", self.refused(self.dir / "never", *task, "--attention", "linear",
                                                    "--convolution", 4))

    def test_a_pattern_of_mixers_in_a_language_model(self):
        text = self.dir / "text.txt"
        text.write_text("under a tree. " * 100)
        task = ("text", *TINY, "--data", text, "--context", 16, "--norm", "rms", "--norm-first", "--feed-forward", "gated",
                "--no-tied", "--no-head-bias")
        models, last = self.train("hybrid", *task, "--attention", "gated-delta-net:2,full", "--layers", 6)
        spec = json.loads(self.ok("info", models["f32"], "--json"))["spec"]
        self.assertEqual([layer["attention"] for layer in spec["pattern"]], ["gated-delta-net"] * 2 + ["full"])
        self.assertEqual((spec["layers"], spec["norm"], spec["feed_forward"], spec["head_bias"]), (6, "rms", "gated", False))
        self.assertIn("gated, RMS norms first", self.ok("info", models["f32"]))
        bits = {}
        for precision, model in models.items():
            measured = json.loads(self.ok("eval", model, "--data", text, "--json"))
            bits[precision] = measured["bits_per_token"]
            self.ok("generate", model, "--prompt", "under", "--max-tokens", 40, "--seed", 1)
        self.near(bits, 0.05)
        never = self.dir / "never"
        self.assertIn("--layers is 4; it must be a multiple of 3, the number of layers in",
                      self.refused(never, *task, "--attention", "gla:2,full", "--layers", 4))
        self.assertIn("'gla:x'", self.refused(never, *task, "--attention", "gla:x"))
        self.assertIn("unknown --attention ''", self.refused(never, *task, "--attention", "gla,,full", "--layers", 3))
        self.assertIn("unknown --norm 'batch'; choose layer or rms", self.refused(never, *task, "--norm", "batch"))

    def test_a_hybrid_over_a_window_has_a_constant_state(self):
        text = self.dir / "text.txt"
        text.write_text("under a tree. " * 100)
        task = ("text", *TINY, "--data", text, "--context", 16, "--norm", "rms", "--norm-first", "--feed-forward", "gated",
                "--no-tied", "--no-head-bias", "--positions", "none", "--layers", 2, "--window", 8)
        hybrid = ("--attention", "gated-delta-net,full", "--rotary", "--key-heads", 1, "--no-qkv-bias", "--no-out-bias")
        models, last = self.train("window", *task, *hybrid)
        info = json.loads(self.ok("info", models["f32"], "--json"))
        self.assertEqual([layer.get("window", 0) for layer in info["spec"]["pattern"]], [0, 8])
        self.assertIn("at any length", self.ok("info", models["f32"]))
        bits = {}
        for precision, model in models.items():
            bits[precision] = json.loads(self.ok("eval", model, "--data", text, "--json"))["bits_per_token"]
            self.ok("generate", model, "--prompt", "under", "--max-tokens", 300, "--seed", 1)
        self.near(bits, 0.05)
        folder, back = self.dir / "fla", self.dir / "back.safetensors"
        self.ok("export", models["f32"], "--format", "fla", "--out", folder)
        config = json.loads((folder / "config.json").read_text())
        self.assertEqual(config["attn"], {"layers": [1], "num_heads": 2, "num_kv_heads": 1, "qkv_bias": False,
                                          "window_size": 8, "rope_theta": 10000.0})
        self.ok("import", folder, "--out", back)
        again = json.loads(self.ok("info", back, "--json"))["spec"]
        self.assertEqual((again["pattern"], again["layers"]), (info["spec"]["pattern"], 2))
        never = self.dir / "never"
        self.assertIn("--window is for softmax attention, and --attention is gla; add a full layer",
                      self.refused(never, *task, "--attention", "gla"))
        self.assertIn("unknown --positions 'some'; choose sequence, grid or none",
                      self.refused(never, *task, *hybrid, "--positions", "some"))
        self.assertIn("grid positions", self.refused(never, *task, *hybrid, "--positions", "grid"))

    def test_causal_tasks_refuse_noncausal_mixers(self):
        text = self.dir / "text.txt"
        text.write_text("under a tree. " * 100)
        pairs = self.dir / "pairs"
        for part in ("train", "valid"):
            (pairs / part).mkdir(parents=True)
            for name in ("in.txt", "out.txt"):
                (pairs / part / name).write_text("天 山 花\n" * 4)
        tasks = (("copy",), ("text", "--data", text), ("couplet", "--data", pairs, "--batch", 2))
        both_ways = [mixer["kind"] for mixer in mixers() if mixer["causal"] == "–"]
        for kind in both_ways:
            for task in tasks:
                said = self.refused(self.dir / "never", *task, "--attention", kind)
                self.assertIn(f"needs causal attention, which '{kind}' is not", said)
        # A decoder attends to the encoder's outputs, so its mixer must have cross attention.
        for mixer in mixers():
            if mixer["kind"] in both_ways or mixer["cross attention"] != "–":
                continue
            said = self.refused(self.dir / "never", *tasks[2], "--network", "encoder-decoder", "--attention",
                                mixer["kind"])
            self.assertIn("needs cross attention", said)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(argv=sys.argv, verbosity=2)
