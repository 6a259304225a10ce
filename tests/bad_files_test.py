#!/usr/bin/env python3
"""Tests that linnet refuses damaged or unsuitable models and data sets with a one-line error.

    tests/bad_files_test.py BIN_DIR [unittest arguments]
"""

import gzip
import random
import struct

from cli_util import (COPY_SPEC, IMAGE_SPEC, Case, digits, idx, main, model,
                      random_tensors, safetensors, write_mnist)


class BadModel(Case):
    def test_wrong_task(self):
        self.refuses(["sample", self.copy, "--out", "a.png"], self.copy, "'copy'", "'images'")
        self.refuses(["complete", self.copy, "--out", "a.png"], self.copy, "'copy'", "'images'")
        self.refuses(["eval", self.copy, "--data", "mnist"], self.copy, "--data")

    def test_unregistered_task(self):
        path = self.write("sonnets.safetensors", model(COPY_SPEC, task="sonnets"))
        self.assertRegex(self.linnet("info", path), r"task +sonnets\n")
        self.refuses(["eval", path], path, "'sonnets'")
        self.refuses(["sample", path, "--out", "a.png"], path, "'sonnets'", "'images'")

    def test_mixer_without_recurrent_state(self):
        path = self.write("reformer.safetensors", model(IMAGE_SPEC, attention="reformer"))
        self.refuses(["bench", "step", path], path, "'reformer' has no recurrent form")

    def test_images_of_another_size(self):
        path = self.write("small.safetensors", model(IMAGE_SPEC, width=8, height=8, max_length=63))
        data = write_mnist(self.dir / "mnist")
        self.refuses(["eval", path, "--data", data], data, "8 x 8")
        self.refuses(["complete", path, "--data", data, "--out", "a.png"], data, "8 x 8")

    def bad(self, data, *fragments):
        path = self.write("bad.safetensors", data)
        for verb in (["info"], ["sample", "--out", "a.png"]):
            self.refuses([verb[0], path, *verb[1:]], path, *fragments)

    def test_missing(self):
        self.refuses(["info", "none.safetensors"], "none.safetensors", "no such file")
        self.refuses(["info", self.dir], self.dir, "folder")

    def test_truncated_and_corrupt(self):
        good = model(IMAGE_SPEC)
        for size in (0, 5, 8, 100, len(good) // 2, len(good) - 1):
            self.bad(good[:size])
        self.bad(good + b"x")
        self.bad(struct.pack("<Q", 1 << 62) + good[8:])
        self.bad(struct.pack("<Q", len(good)) + good[8:], "header")
        self.bad(good[:8] + b"[" + good[9:])
        self.bad(b"\x89PNG\r\n\x1a\n" + bytes(100))

    def test_header_of_a_larger_tensor(self):
        def longer(header):
            header["predictor.bias"]["shape"] = [1 << 40]
            header["predictor.bias"]["data_offsets"][1] += 4 * (1 << 40) - 120

        tensors = random_tensors(IMAGE_SPEC)
        tensors["predictor.bias"] = tensors.pop("predictor.bias")  # moved to the end
        self.bad(safetensors(IMAGE_SPEC, tensors, change_header=longer))

        def overflowing(header):
            header["predictor.bias"]["shape"] = [1 << 62, 1 << 62]

        self.bad(safetensors(IMAGE_SPEC, tensors, change_header=overflowing))

    def test_tensors_that_do_not_fit_the_spec(self):
        tensors = random_tensors(IMAGE_SPEC)
        self.bad(safetensors({**IMAGE_SPEC, "layers": 3}, tensors), "transformer.layers.2.")
        self.bad(safetensors({**IMAGE_SPEC, "d_ff": 31}, tensors), "linear1", "31")
        shape, values = tensors["predictor.weight"]
        tensors["predictor.weight"] = (shape[::-1], values)
        self.bad(safetensors(IMAGE_SPEC, tensors), "predictor.weight")

        def retyped(header):
            header["predictor.bias"]["dtype"] = "I32"

        self.bad(safetensors(IMAGE_SPEC, random_tensors(IMAGE_SPEC), change_header=retyped),
                 "predictor.bias", "I32")

    def test_invalid_specs(self):
        tensors = random_tensors(IMAGE_SPEC)
        self.bad(safetensors(IMAGE_SPEC, tensors, metadata={}), "linnet")
        self.bad(safetensors(IMAGE_SPEC, tensors, metadata={"linnet": "{"}))
        self.bad(safetensors(IMAGE_SPEC, tensors, metadata={"linnet": "[" * 10000}))
        for change in (dict(layers=10**9), dict(layers=-1), dict(heads="2"), dict(d_model=1 << 40),
                       dict(attention="psychic"), dict(flavour="mint"),
                       dict(task="two\nlines"), dict(max_length=2**31 - 1, d_model=65536)):
            self.bad(safetensors({**IMAGE_SPEC, **change}, tensors))

    def test_damage_at_random(self):
        good = model(COPY_SPEC)
        rng = random.Random(5)
        header = struct.unpack("<Q", good[:8])[0]
        for _ in range(60):
            bad = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                bad[rng.randrange(8 + header)] = rng.randrange(256)
            path = self.write("bad.safetensors", bytes(bad))
            done = self.run_linnet("info", path)
            self.assertIn(done.returncode, (0, 2), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1 if done.returncode else 0, done.stderr)


class BadData(Case):
    def setUp(self):
        super().setUp()
        self.data = write_mnist(self.dir / "mnist")

    def bad(self, *fragments):
        for arguments in (["eval", self.images], ["complete", self.images, "--out", "a.png"]):
            self.refuses([*arguments, "--data", self.data], *fragments)

    def test_missing(self):
        self.refuses(["eval", self.images, "--data", "nowhere"], "nowhere")
        (self.dir / "empty").mkdir()
        self.refuses(["eval", self.images, "--data", "empty"], "empty", "t10k-images")
        self.refuses(["eval", self.images, "--data", self.data, "--dataset", "emoji"], "emoji", "mnist")
        (self.data / "t10k-labels-idx1-ubyte.gz").unlink()
        self.bad(self.data / "t10k-labels-idx1-ubyte")
        self.refuses(["complete", self.images, "--data", self.data, "--split", "train", "--out",
                      "a.png", "--first", 8], "12 train images")

    def test_gzip(self):
        path = self.data / "t10k-images-idx3-ubyte.gz"
        good = path.read_bytes()
        for size in (1, 3, 20, len(good) // 2, len(good) - 1):
            path.write_bytes(good[:size])
            self.bad(path)
        path.write_bytes(good[:-6] + bytes([good[-6] ^ 1]) + good[-5:])  # one wrong bit in the checksum
        self.bad(path)
        path.write_bytes(good[:200] + bytes(200) + good[400:])
        self.bad(path)

    def test_idx(self):
        path = self.data / "t10k-images-idx3-ubyte.gz"
        pixels = digits(12, seed=2)
        for data in (b"", b"\0\0", idx([12, 28, 28], pixels)[:10], idx([12, 28, 28], pixels[:-1]),
                     idx([13, 28, 28], pixels), idx([11, 28, 28], pixels),
                     idx([1 << 31, 1 << 31, 1 << 31], pixels), idx([12, 28, 28], pixels, kind=13),
                     idx([12, 14, 56], pixels), idx([12 * 784], pixels), b"PK" + pixels):
            path.write_bytes(data)
            self.bad(path)
            path.write_bytes(gzip.compress(data))
            self.bad(path)

    def test_labels_of_other_images(self):
        (self.data / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx([11], bytes(11))))
        self.bad("11", "12")


if __name__ == "__main__":
    main()
