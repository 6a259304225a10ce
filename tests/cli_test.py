#!/usr/bin/env python3
"""End-to-end tests of the linnet program, on tiny models and a tiny synthetic MNIST.

    tests/cli_test.py BIN_DIR [unittest arguments]
"""

import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import cli_util
from cli_util import (COPY_SPEC, IMAGE_SPEC, Case, digits, main, model, random_tensors, read_png,
                      safetensors, tensor_shapes, write_mnist)
from train_forks import variables_for_libtorch


class Program(Case):
    def test_version_and_help(self):
        self.assertRegex(self.linnet("--version"), r"^linnet \d+\.\d+\.\d+\n$")
        overview = self.linnet("--help")
        for verb in ("eval", "sample", "complete", "bench", "info", "bench step",
                     "bench causal-linear"):
            text = self.linnet(*verb.split(), "--help")
            self.assertIn(f"Examples:\n  linnet {verb}", text)
            self.assertIn(verb.split()[0], overview)
        for verb in ("train", "data", "reproduce"):
            self.assertIn(verb, overview)

    def test_bad_usage(self):
        for arguments in ([], ["paint"], ["info"], ["info", self.images, "--what"], ["bench"],
                          ["sample", self.images, "--out", "a.png", "--count", "0"],
                          ["sample", self.images, "--out", "a.png", "--count", "many"],
                          ["sample", self.images, "--out", "a.png", "--temperature", "nan"],
                          ["bench", "step", "--seconds", "nan"],
                          ["sample", self.images, "--out", "a.png", "--sampler", "guess"],
                          ["sample", self.images], ["eval", self.images, "--limit", "-1"],
                          ["eval", self.images, "--split", "middle"]):
            self.refuses(arguments, "--help")
        self.refuses(["eval", self.images], "--data")
        self.refuses(["complete", self.images, "--out", "a.png", "--rows-known", "28"], "27")
        self.refuses(["info", self.images], "PDP11", "SCALAR", env={"LINNET_ISA": "PDP11"})

    def test_output_that_cannot_be_written(self):
        for arguments in (["info", self.images], ["--help"], ["--version"]):
            for where in (">/dev/full", ">&-"):
                command = " ".join(map(str, [cli_util.BIN / "linnet", *arguments, where]))
                done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 1, command)
                self.assertEqual(done.stderr, "linnet: standard output: cannot be written\n")

    def test_a_terminated_process_leaves_no_partial_file(self):
        spec = {**IMAGE_SPEC, "layers": 4, "d_model": 512, "d_ff": 2048}
        large = self.write("large.safetensors", safetensors(
            spec, {name: (shape, [0.5]) for name, shape in tensor_shapes(spec).items()}, repeat=True))

        def size(path):
            try:
                return path.stat().st_size
            except FileNotFoundError:  # it was renamed after it was listed
                return 0

        for number in (signal.SIGTERM, signal.SIGINT):
            process = subprocess.Popen([cli_util.BIN / "linnet", "export", large, "--format", "safetensors", "--out",
                                        self.dir / "out"], stdout=subprocess.DEVNULL)
            deadline = time.monotonic() + 60
            while not any(size(p) > 1 << 20 for p in self.dir.glob("out.tmp.*")):
                if process.poll() is not None:
                    break  # the export finished before the signal
                self.assertLess(time.monotonic(), deadline, "nothing is written")
                time.sleep(0.001)
            process.send_signal(number)
            self.assertIn(process.wait(timeout=60), (0, -number))
            self.assertEqual(list(self.dir.glob("out.tmp.*")), [])

    def test_files_that_may_not_grow(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))

        for arguments in (["export", self.images, "--format", "pth", "--out", "a"],
                          ["sample", self.images, "--count", "64", "--out", "a.png"]):
            done = subprocess.run([cli_util.BIN / "linnet", *arguments], cwd=self.dir, capture_output=True, text=True,
                                  timeout=300, preexec_fn=limit)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("File too large", done.stderr)
            self.assertEqual([p.name for p in self.dir.iterdir() if p.name.startswith("a")], [])

    def test_output_that_is_the_model(self):
        link = self.dir / "link"
        link.symlink_to(self.images)
        for out in (self.images, link):
            self.refuses(["sample", self.images, "--out", out, "--count", "1"], out)
            self.refuses(["complete", self.images, "--out", out, "--count", "1"], out)

    def test_a_sheet_too_large_is_refused_before_the_work(self):
        self.refuses(["sample", self.images, "--out", "a.png", "--count", "100000", "--scale", "100"],
                     "fewer or smaller")
        self.refuses(["complete", self.images, "--out", "a.png", "--count", "1000", "--scale", "100"],
                     "fewer or smaller")

    def test_more_threads_than_can_start(self):
        command = f"ulimit -v 3000000; {cli_util.BIN / 'linnet'} eval {self.copy} --threads 1024"
        done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
        if "Sanitizer" in done.stderr:
            self.skipTest("a sanitizer needs more address space than the limit allows")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("threads", done.stderr)

    def test_links_no_heavy_libraries(self):
        libraries = subprocess.run(["ldd", cli_util.BIN / "linnet"], capture_output=True, text=True,
                                   check=True).stdout
        self.assertIn("libpng", libraries)
        for name in ("torch", "libc10", "gomp", "blas", "curl", "libssl", "cairo"):
            self.assertNotIn(name, libraries)

    def test_verbs_of_other_programs(self):
        folder = self.dir / "bin"
        folder.mkdir()
        shutil.copy(cli_util.BIN / "linnet", folder)
        for verb in ("train", "data"):
            sibling = folder / f"linnet-{verb}"
            self.refuses([verb, "images"], sibling, "scripts/build", program=folder / "linnet",
                         env={"PATH": "/nowhere"})
            sibling.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 7\n')
            sibling.chmod(0o755)
            first = "train|" if verb == "train" else ""  # linnet-train is also told the verb; linnet-data has only one
            arguments = ["images", "--help", "--lr", "1e-4", "eval", "--", "a b", ""]
            done = self.run_linnet(verb, *arguments, program=folder / "linnet")
            self.assertEqual((done.returncode, done.stdout), (7, first + "|".join(arguments) + "|"))
            done = self.run_linnet(verb, "--help", program=folder / "linnet")
            self.assertEqual((done.returncode, done.stdout), (7, first + "--help|"))

    def test_variables_for_libtorch(self):
        folder = self.dir / "bin"
        folder.mkdir()
        shutil.copy(cli_util.BIN / "linnet", folder)
        sibling = folder / "linnet-train"
        sibling.write_text('#!/bin/sh\necho "$GOMP_SPINCOUNT $OPENBLAS_CORETYPE"\n')
        sibling.chmod(0o755)
        unset = {name: value for name, value in os.environ.items()
                 if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OPENBLAS_CORETYPE")}

        def variables(**own):
            return subprocess.run([folder / "linnet", "train"], env={**unset, **own}, check=True,
                                  capture_output=True, text=True).stdout.split()

        self.assertEqual(variables(), list(variables_for_libtorch().values()))
        self.assertEqual(variables(GOMP_SPINCOUNT="5", OPENBLAS_CORETYPE="Zen"), ["5", "Zen"])


class Info(Case):
    def test_json(self):
        trained = {"data": "tiny", "steps": 5, "recipe": {"lr": 0.001}}
        path = self.write("trained.safetensors", safetensors(
            IMAGE_SPEC, random_tensors(IMAGE_SPEC),
            {"linnet": json.dumps(IMAGE_SPEC), "training": json.dumps(trained)}))
        info = self.linnet_json("info", path)
        shapes = tensor_shapes(IMAGE_SPEC)
        parameters = sum(math.prod(shape) for name, shape in shapes.items()
                         if name not in ("pos_embedding.pe", "first_value.probability"))
        self.assertEqual(info["parameters"], parameters)
        self.assertEqual(info["weight_bytes"], 4 * parameters)
        self.assertEqual(info["file_bytes"], path.stat().st_size)
        # 2 layers of 2 heads, in the layout of linnet/kernels/linear_step.h: rows of 4 numbers are padded to 32. Per
        # head, in fp32: s [4, 32]; z and the sum of the keys that are not yet folded into z [2, 32]; 8 such keys and
        # their values [8, 64]; the rounding remainder of z [32]. In bf16: the rounding remainder of s [4, 32].
        self.assertEqual(info["state_bytes"], 2 * 2 * (4 * (4 * 32 + 2 * 32 + 8 * 64 + 32) + 2 * 4 * 32))
        self.assertEqual(info["positions"], 783)
        self.assertEqual(info["training"], trained)
        self.assertEqual(info["spec"]["d_model"], 16)
        text = self.linnet("info", path)
        for fragment in ("causal-linear", "28 x 28", "recipe.lr", "tiny", info["isa"]):
            self.assertIn(fragment, text)

    def trained(self, notes):
        return self.write("odd.safetensors", safetensors(
            IMAGE_SPEC, random_tensors(IMAGE_SPEC), {"linnet": json.dumps(IMAGE_SPEC), "training": notes}))

    def test_odd_training_notes(self):
        for notes in ("", "not json", '"\\u001b[2J"', "[1, {}]", "{}", '{"a\\u001b[2J\\nb": 1}',
                      '{"a": "\\u009b31m\\u007f"}', '{"\\u009b31m\\u007f": 1}'):
            path = self.trained(notes)
            for text in (self.linnet("info", path), self.linnet("info", path, "--json")):
                self.assertIsNone(re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), notes)
            self.linnet_json("info", path)
        path = self.trained('{"lr": 1, "b\\nc": {"d": 2}}')
        self.assertRegex(self.linnet("info", path), r'(?m)^  lr +1\n  "b\\nc"\.d +2$')
        self.assertNotIn("training_fault", self.linnet_json("info", path))

    def test_training_notes_that_are_not_readable(self):
        for notes, fault in (("not json", "valid JSON"), ("[" * 200000 + "]" * 200000, "larger"),
                             ('{"a":' * 100 + "1" + "}" * 100, "deeply"), ('{"a": 1, "a": 2}', "twice"),
                             ("[" + "0," * 50000 + "0]", "larger")):
            path = self.trained(notes)
            self.assertRegex(self.linnet("info", path), f"not readable: it .*{fault}")
            info = self.linnet_json("info", path)
            self.assertIsNone(info["training"])
            self.assertIn(fault, info["training_fault"])

    def test_the_page_has_the_table_of_the_registry(self):
        page = pathlib.Path(__file__).resolve().parent.parent / "docs/attention/README.md"
        self.assertIn(self.linnet("info", "--mixers"), page.read_text())

    def test_models_without_recurrent_state_keep_their_tokens(self):
        path = self.write("reformer.safetensors", model(IMAGE_SPEC, attention="reformer"))
        self.assertEqual(self.linnet_json("info", path)["state_bytes"], 4 * 784)  # 783, rounded up to a multiple of 16
        self.assertIn("'reformer' has no recurrent form", self.linnet("info", path))

    def test_a_softmax_state_has_room_for_every_position(self):
        path = self.write("full.safetensors", model(IMAGE_SPEC, attention="full"))
        head = -(-783 * (4 + 4) // 16) * 16  # keys and values, rounded up to a multiple of 16
        self.assertEqual(self.linnet_json("info", path)["state_bytes"], 4 * 2 * 2 * head)
        self.assertIn("783 positions", self.linnet("info", path))

    def test_other_isas(self):
        for isa in ("SCALAR", "AVX2"):
            done = self.run_linnet("info", self.images, "--json", env={"LINNET_ISA": isa})
            if isa != "SCALAR" and done.returncode == 2:
                self.assertIn(isa, done.stderr)  # this machine does not support the isa
            else:
                self.assertEqual(json.loads(done.stdout)["isa"], isa)


class Eval(Case):
    def setUp(self):
        super().setUp()
        self.data = write_mnist(self.dir / "mnist")

    def eval(self, *arguments, model=None):
        return self.linnet_json("eval", model or self.images, "--data", self.data, *arguments)

    def test_matches_the_formula_of_a_mixture_of_logistics(self):
        # With zero weights in the head, its outputs are its bias: the same mixture for every byte.
        tensors = random_tensors(IMAGE_SPEC)
        rng = random.Random(3)
        logits = [rng.uniform(-1, 1) for _ in range(10)]
        means = [rng.uniform(-1, 1) for _ in range(10)]
        scales = [rng.uniform(-8, 0) for _ in range(10)]
        tensors["predictor.weight"] = ([30, 16], [0.0] * 480)
        tensors["predictor.bias"] = ([30], logits + means + scales)
        path = self.write("constant.safetensors", safetensors(IMAGE_SPEC, tensors))

        def sigmoid(x):
            return 1 / (1 + math.exp(-x)) if x > -700 else 0.0

        def nats(byte):
            x, total = 2 * byte / 255 - 1, sum(map(math.exp, logits))
            p = 0.0
            for logit, mean, scale in zip(logits, means, scales):
                width = math.exp(max(scale, -7))
                above = 1.0 if byte == 255 else sigmoid((x + 1 / 255 - mean) / width)
                below = 0.0 if byte == 0 else sigmoid((x - 1 / 255 - mean) / width)
                p += math.exp(logit) / total * (above - below)
            return -math.log(p)

        table = [nats(byte) for byte in range(256)]
        pixels = digits(12, seed=2)
        expected = [table[pixels[i]] for i in range(len(pixels)) if i % 784 > 0]
        result = self.eval(model=path)
        self.assertAlmostEqual(result["nats_per_dim"], sum(expected) / len(expected), delta=1e-4)
        self.assertAlmostEqual(result["bits_per_dim"], result["nats_per_dim"] / math.log(2))

    def test_total_is_the_mean_of_the_rows(self):
        result = self.eval()
        rows = result["bits_per_dim_by_row"]
        self.assertEqual(len(rows), 28)
        self.assertAlmostEqual((27 * rows[0] + 28 * sum(rows[1:])) / 783, result["bits_per_dim"], places=6)

    def test_fields_and_limit(self):
        result = self.eval("--limit", 5)
        self.assertEqual((result["images"], result["split"], result["dataset"]), (5, "test", "mnist"))
        self.assertEqual(result["model"], str(self.images))
        self.assertEqual(self.eval()["images"], 12)
        self.assertNotEqual(self.eval()["bits_per_dim"], result["bits_per_dim"])
        self.assertNotEqual(self.eval("--split", "train")["bits_per_dim"],
                            self.eval()["bits_per_dim"])
        self.assertRegex(self.linnet("eval", self.images, "--data", self.data, "--limit", 2),
                         r"^bits/dim \d+\.\d+ over 2 of the 10000 test images of mnist")

    def test_same_at_any_thread_count_and_batch(self):
        expected = self.eval("--threads", 1, "--batch", 1)["bits_per_dim"]
        for threads, batch in ((2, 1), (3, 5), (1, 64)):
            result = self.eval("--threads", threads, "--batch", batch)
            self.assertEqual((result["bits_per_dim"], result["threads"]), (expected, threads))

    def test_copy(self):
        result = self.linnet_json("eval", self.copy, "--limit", 6)
        self.assertEqual(result["sequences"], 6)
        self.assertTrue(0 <= result["accuracy"] < 0.9)  # the model is untrained
        self.assertTrue(6 * 10 <= result["tokens"] < 6 * 20)
        self.assertNotEqual(self.linnet_json("eval", self.copy, "--limit", 6, "--seed", 1)["tokens"],
                            result["tokens"])
        text = self.linnet("eval", self.copy, "--limit", 6, "--show", 2)
        self.assertEqual((text.count("given"), text.count("copied")), (2, 2))

    def test_non_finite_weights(self):
        tensors = random_tensors(IMAGE_SPEC)
        for value in (math.nan, math.inf):
            tensors["predictor.bias"] = ([30], [0.0] * 29 + [value])
            path = self.write("nan.safetensors", safetensors(IMAGE_SPEC, tensors))
            for arguments in (["eval", path, "--data", self.data], ["sample", path, "--out", "a.png"],
                              ["complete", path, "--out", "a.png"], ["bench", "step", path]):
                self.refuses(arguments, path, "predictor.bias")
        # The weights are finite, but products of them overflow.
        tensors["predictor.bias"] = ([30], [0.0] * 30)
        tensors["predictor.weight"] = ([30, 16], [3e38] * 480)
        path = self.write("huge.safetensors", safetensors(IMAGE_SPEC, tensors))
        done = self.run_linnet("eval", path, "--data", self.data, "--json")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("weights", done.stderr)
        for precision in ("bf16", "int8"):
            self.refuses(["export", path, "--precision", precision, "--out", "small.safetensors"], path,
                         "predictor.weight")


class Sheets(Case):
    def test_sample(self):
        result = self.linnet_json("sample", self.images, "--out", "a.png", "--count", 6, "--scale", 2)
        self.assertEqual((result["images"], result["out"]), (6, "a.png"))
        self.assertAlmostEqual(result["images_per_second"] * result["ms_per_image"], 1000)
        width, height, rows = read_png(self.dir / "a.png")
        self.assertEqual((width, height), (3 * 58 + 2, 2 * 58 + 2))
        self.assertGreater(len(set(b"".join(rows))), 2)
        self.assertIn("images/s", self.linnet("sample", self.images, "--out", "b.png", "--columns", 8,
                                              "--count", 2, "--scale", 1, "--temperature", 0.5,
                                              "--sampler", "reference"))
        self.assertEqual(read_png(self.dir / "b.png")[:2], (2 * 29 + 1, 30))

    def test_a_seed_gives_the_same_image_in_any_batch(self):
        def draw(name, *arguments):
            self.linnet("sample", self.images, "--out", name, "--count", 5, "--seed", 0, *arguments)
            return (self.dir / name).read_bytes()

        expected = draw("a.png", "--threads", 1, "--batch", 1)
        self.assertEqual(draw("b.png", "--threads", 2, "--batch", 3), expected)
        self.assertEqual(draw("c.png", "--threads", 3), expected)
        self.assertNotEqual(draw("d.png", "--seed", 1), expected)

    def band(self, rows, band, column, first=0, count=28):
        """`count` pixel rows, from `first` on, of the image in row `band` and column `column` of a sheet of scale 1."""
        top, left = 1 + 29 * band, 1 + 29 * column
        return [row[left:left + 28] for row in rows[top + first:top + first + count]]

    def test_complete(self):
        data = write_mnist(self.dir / "mnist")
        pixels = digits(12, seed=2)
        self.linnet("complete", self.images, "--data", data, "--out", "a.png", "--count", 3,
                    "--first", 4, "--rows-known", 9, "--alternatives", 2, "--scale", 1)
        width, height, rows = read_png(self.dir / "a.png")
        self.assertEqual((width, height), (3 * 29 + 1, 4 * 29 + 1))
        for column in range(3):
            image = pixels[(4 + column) * 784:(5 + column) * 784]
            original = [image[y * 28:y * 28 + 28] for y in range(28)]
            self.assertEqual(self.band(rows, 3, column), original)
            for band in range(3):
                self.assertEqual(self.band(rows, band, column, 0, 9), original[:9])
            self.assertEqual(self.band(rows, 0, column, 9, 19), [bytes([128] * 28)] * 19)
            first, second = (self.band(rows, band, column, 9, 19) for band in (1, 2))
            self.assertNotEqual(first, second)
            self.assertNotEqual(first, original[9:])

    def test_complete_own_samples(self):
        result = self.linnet_json("complete", self.images, "--out", "a.png", "--count", 2,
                                  "--scale", 1)
        self.assertEqual((result["images"], result["rows_known"]), (2, 14))
        _, _, rows = read_png(self.dir / "a.png")
        for column in range(2):
            self.assertEqual(self.band(rows, 1, column, 0, 14), self.band(rows, 2, column, 0, 14))
            self.assertNotEqual(self.band(rows, 1, column, 14, 14),
                                self.band(rows, 2, column, 14, 14))

    def test_unwritable_output(self):
        (self.dir / "folder").mkdir()
        for out in ("folder", "none/a.png", "images.safetensors/a.png", "/proc/a.png", ""):
            self.refuses(["sample", self.images, "--out", out], "writ")
            self.refuses(["complete", self.images, "--out", out], "writ")
        if os.geteuid() != 0:
            (self.dir / "folder").chmod(0o555)
            self.refuses(["sample", self.images, "--out", "folder/a.png"], "folder")


class Bench(Case):
    def check_records(self, records, *identity):
        for record in records:
            self.assertIs(record["checked"], True)
            self.assertGreater(record["value"], 0)
            self.assertGreater(record["limit"], 0)
            self.assertAlmostEqual(record["ratio"], record["value"] / record["limit"])
            for field in ("name", "unit", "N", "batch", "threads", "isa", "precision", *identity):
                self.assertIn(field, record)

    def test_step(self):
        records = self.linnet_json("bench", "step", self.images, self.copy, "--seconds", 0)
        self.assertEqual([record["model"] for record in records], [str(self.images), str(self.copy)])
        self.check_records(records, "weight_bytes")
        self.assertIn("us/token", self.linnet("bench", "step", self.copy, "--seconds", 0))
        last = 28 * 28 - 2
        for start in 2, last:
            records = self.linnet_json("bench", "step", self.images, "--batch", "1,3", "--from", start, "--seconds", 0)
            self.assertEqual([(record["batch"], record["from"]) for record in records], [(1, start), (3, start)])
            self.check_records(records, "state_bytes", "read_gbs", "product_gops")
            for record in records:
                self.assertTrue(start <= record["mean_position"] <= last, record)
        self.refuses(["bench", "step", self.images, "--from", last + 1], "--from 783")
        self.refuses(["bench", "step", "--random", "mnist", "--attention", "full", "--batch", "1,1000000"],
                     "--batch 1000000", "of memory")
        self.refuses(["bench", "step", "--attention", "full"], "--attention requires --random")
        records = self.linnet_json("bench", "step", "--random", "mnist", "--attention", "full", "--precision", "f32",
                                   "--batch", 2, "--from", 3, "--seconds", 0)
        self.check_records(records)
        self.assertEqual((records[0]["attention"], records[0]["batch"]), ("full", 2))

    def test_generate(self):
        records = self.linnet_json("bench", "generate", self.images, "--batch", "1,3", "--precision",
                                   "f32,bf16,int8", "--seconds", 0)
        self.assertEqual([(record["batch"], record["precision"]) for record in records
                          if record["name"] == "generate"],
                         [(batch, precision) for batch in (1, 3)
                          for precision in ("f32", "bf16", "int8")])
        self.check_records(records, "images_per_second", "state_bytes", "dot_unit", "product_gops")
        said = self.linnet("bench", "generate", self.images, "--seconds", 0)
        self.assertIn("images/s", said)
        for arguments, fragment in (([], "--random"), ([self.copy], "copy"),
                                    ([self.images, "--random", "mnist"], "MODEL"),
                                    (["--random", "svhn"], "svhn"),
                                    ([self.images, "--precision", "int4"], "int8"),
                                    ([self.images, "--batch", "0"], "--batch")):
            self.refuses(["bench", "generate", *arguments], fragment)

    def test_prefix(self):
        records = self.linnet_json("bench", "prefix", "--length", 33, "--precision", "f32,int8", "--seconds", 0)
        self.assertEqual([(record["model"], record["precision"]) for record in records],
                         [("paper", "f32"), ("paper", "int8")])
        self.check_records(records, "steps_ms", "speedup", "product_gops")

    def test_stream(self):
        records = self.linnet_json("bench", "stream", "--positions", 3000)
        self.assertEqual({record["checked"] for record in records}, {True})
        self.assertGreater(len(records), 1)

    def test_causal_linear(self):
        records = self.linnet_json("bench", "causal-linear", "--max-n", 1024, "--seconds", 0)
        passes = [f"causal-linear/{form}/{name}" for form in ("bare", "fused")
                  for name in ("forward", "forward+backward")]
        self.assertEqual([(record["name"], record["N"]) for record in records],
                         [(name, n) for n in (512, 1024) for name in passes] +
                         [(f"{name}/spread", 1024) for name in passes])
        self.check_records(records, "heads", "layout")
        for record in records:
            if not record["name"].endswith("spread"):
                self.assertGreater(record["ns_per_token"], 0)
                self.assertAlmostEqual(record["limit"],
                                       max(record["products_ms"], record["stream_ms"]))
            self.assertEqual("to_bare" in record, "fused/" in record["name"] and
                             "spread" not in record["name"])

    def test_scan(self):
        records = self.linnet_json("bench", "scan", "--min-n", 64, "--max-n", 128, "--seconds", 0,
                                   "--policies", "gla,kda", "--layout", "row")
        self.assertEqual([(record["name"], record["N"]) for record in records],
                         [(f"scan/{policy}/{name}", n) for n in (64, 128) for policy in ("gla", "kda")
                          for name in ("forward", "forward+backward", "steps")])
        self.check_records(records, "heads", "dim", "layout")
        for record in records:
            self.assertGreater(record["to_forward" if "steps" in record["name"] else "to_causal_linear"], 0)
        self.refuses(["bench", "scan", "--policies", "lstm"], "--policies", "--help")

    def test_causal_linear_of_other_sizes(self):
        for options in (["--dim", 64, "--value-dim", 20, "--layout", "row"],
                        ["--dim", 128, "--heads", 1, "--precision", "bf16"],
                        ["--layout", "row", "--precision", "bf16", "--threads", 1]):
            records = self.linnet_json("bench", "causal-linear", "--min-n", 64, "--max-n", 128,
                                       "--seconds", 0, *options)
            self.check_records(records, "dim", "value_dim")
            for name, value in zip(options[::2], options[1::2]):
                self.assertEqual(records[0][name[2:].replace("-", "_")], value)
        for options in (["--dim", 33], ["--layout", "heap"], ["--precision", "f16"],
                        ["--max-n", 2 ** 21], ["--value-dim", 0]):
            self.refuses(["bench", "causal-linear", *options], options[0], "--help")
        self.refuses(["bench", "causal-linear", "--min-n", 512, "--max-n", 64], "--min-n", "--max-n")


class Precision(Case):
    def test_export_and_run(self):
        for precision in ("bf16", "int8"):
            path = self.dir / f"{precision}.safetensors"
            said = self.linnet_json("export", self.images, "--precision", precision, "--out", path)
            self.assertEqual(said["file_bytes"], path.stat().st_size)
            self.assertLess(path.stat().st_size, self.images.stat().st_size)
            self.assertEqual(self.linnet_json("info", path)["precision"], precision)
            said = self.linnet_json("sample", path, "--count", 1, "--seed", 0, "--out", "own.png")
            self.assertEqual(said["precision"], precision)
            # Rounding at load and rounding at export give the same weights, except for embeddings,
            # which only the export rounds.
            self.linnet("export", path, "--precision", "f32", "--out", "wide.safetensors")
            said = self.linnet_json("sample", "wide.safetensors", "--count", 1, "--seed", 0, "--out", "wide.png",
                                    "--precision", precision)
            self.assertEqual(said["precision"], precision)
            self.assertEqual((self.dir / "own.png").read_bytes(), (self.dir / "wide.png").read_bytes())
        for verb in ("sample", "complete"):
            self.refuses([verb, self.images, "--out", "a.png", "--precision", "int4"], "int4", "bf16")
        self.refuses(["export", self.images, "--precision", "int8", "--out", self.images], "itself")

    def test_a_stem_is_described_and_narrowed_but_not_exported(self):
        path = self.write("stem.safetensors", model(IMAGE_SPEC, stem_channels=6))
        self.assertIn("convolutions over 4 x 7 pixels to 6 channels, and over 3 x 5", self.linnet("info", path))
        self.assertEqual(self.linnet_json("info", path)["spec"]["stem_channels"], 6)
        for form in ("pth", "safetensors"):
            self.refuses(["export", path, "--format", form, "--out", "a"], path, "has a stem", "--precision")
            self.assertFalse((self.dir / "a").exists())
        self.linnet("export", path, "--precision", "int8", "--out", "int8.safetensors")
        data = (self.dir / "int8.safetensors").read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        self.assertEqual(header["stem.output.0.weight"]["dtype"], "I8")
        self.assertEqual(header["stem.features.0.weight"]["dtype"], "F32")
        self.linnet("export", "int8.safetensors", "--precision", "f32", "--out", "wide.safetensors")
        for name, options in (("int8", []), ("wide", ["--precision", "int8"])):
            self.linnet("sample", f"{name}.safetensors", *options, "--count", 1, "--seed", 0, "--out", f"{name}.png")
        self.assertEqual((self.dir / "int8.png").read_bytes(), (self.dir / "wide.png").read_bytes())
        bad = self.write("bad.safetensors", safetensors({**IMAGE_SPEC, "stem_channels": -1}, random_tensors(IMAGE_SPEC)))
        self.refuses(["info", bad], "stem_channels is -1")
        self.refuses(["info", self.write("bad.safetensors", model(COPY_SPEC, stem_channels=4))],
                     "a stem is for images")

    def test_patches_are_described_and_narrowed_but_not_exported(self):
        spec = dict(patch=7, patch_width=24, patch_d_ff=40, patch_convolution=4, stem_channels=3)
        path = self.write("patches.safetensors", model(IMAGE_SPEC, **spec))
        self.assertIn("a network of width 24 (40 hidden units) predicts each, after a convolution over 4",
                      self.linnet("info", path))
        plain = self.write("no-stem.safetensors", model(IMAGE_SPEC, **{**spec, "stem_channels": 0}))
        for form in ("pth", "safetensors"):
            self.refuses(["export", plain, "--format", form, "--out", "a"], plain, "has patches", "--precision")
            self.assertFalse((self.dir / "a").exists())
        self.linnet("export", path, "--precision", "int8", "--out", "int8.safetensors")
        data = (self.dir / "int8.safetensors").read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        for name in ("in", "out", "linear1", "linear2"):
            self.assertEqual(header[f"patch.{name}.weight"]["dtype"], "I8")
        self.linnet("export", "int8.safetensors", "--precision", "f32", "--out", "wide.safetensors")
        for name, options in (("int8", []), ("wide", ["--precision", "int8"])):
            self.linnet("sample", f"{name}.safetensors", *options, "--count", 2, "--seed", 0, "--out", f"{name}.png")
        self.assertEqual((self.dir / "int8.png").read_bytes(), (self.dir / "wide.png").read_bytes())
        for bad, message in ((dict(patch=5), "patch is 5; it must divide"),
                             (dict(patch=0), "patch is 0"), (dict(patch_width=0), "patch_width is 0"),
                             (dict(patch_d_ff=0), "patch_d_ff is 0"), (dict(patch=1), "set them to 0"),
                             (dict(width=2147483647), "width is 2147483647"),
                             (dict(patch=28, width=28, height=1, max_length=27), "the layers would never run")):
            bad_path = self.write("bad.safetensors", safetensors({**IMAGE_SPEC, **spec, **bad}, random_tensors(IMAGE_SPEC)))
            self.refuses(["info", bad_path], message)
        self.refuses(["info", self.write("bad.safetensors", model(COPY_SPEC, patch=2, patch_width=16, patch_d_ff=8))],
                     "patches are for transformers of images")

    def test_damaged_narrow_files(self):
        path = self.dir / "int8.safetensors"
        self.linnet("export", self.images, "--precision", "int8", "--out", path)
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])

        def damaged(change):
            changed = json.loads(json.dumps(header))
            change(changed)
            text = json.dumps(changed).encode()
            return self.write("bad.safetensors",
                              len(text).to_bytes(8, "little") + text + data[8 + size:])

        name = "transformer.layers.0.linear1.weight"
        self.assertEqual(header[name]["dtype"], "I8")

        def rename(old, new):
            def change(h):
                h[new] = h.pop(old)
            return change

        def shape(which, value):
            def change(h):
                h[which]["shape"] = value
            return change

        scale = header[name + "_scale"]["shape"][0]
        for change, fragment in ((rename(name + "_scale", "other"), "scales"),
                                 (shape(name + "_scale", [1, scale]), name),
                                 (shape(name, header[name]["shape"][::-1]), name)):
            self.refuses(["info", damaged(change)], "bad.safetensors", fragment)
        # The scales are NaN.
        begin, end = header[name + "_scale"]["data_offsets"]
        bad = bytearray(data)
        bad[8 + size + begin:8 + size + end] = b"\xff" * (end - begin)
        self.refuses(["sample", self.write("nan.safetensors", bytes(bad)), "--out", "a.png"], name)


if __name__ == "__main__":
    main()
