#!/usr/bin/env python3
"""End-to-end tests of training: checkpoints, resumption, and errors.

    tests/train_test.py BIN_DIR [unittest arguments]
"""

import gzip
import json
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import train_forks
from raw_tensors import tensors

BIN = pathlib.Path("build/release/bin").resolve()

TINY = ["--layers", "1", "--heads", "2", "--d-model", "16", "--batch", "4", "--threads", "1"]
COPY = ["copy", *TINY, "--max-length", "8", "--dropout", "0.1"]


def write_idx(path, shape, data):
    with gzip.open(path, "wb") as file:
        file.write(bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data)


def tiny_mnist(folder):
    rng = random.Random(5)
    for split, count in (("train", 25), ("t10k", 6)):
        pixels = bytes(rng.choice((0, 0, 0, 255, 128)) for _ in range(count * 784))
        write_idx(folder / f"{split}-images-idx3-ubyte.gz", (count, 28, 28), pixels)
        write_idx(folder / f"{split}-labels-idx1-ubyte.gz", (count,), bytes(count))


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class TrainTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_train_test."))
        self.addCleanup(shutil.rmtree, self.dir)

    def train(self, *args, **options):
        if options:
            return subprocess.run([BIN / "linnet", "train", *map(str, args)], capture_output=True, text=True,
                                  timeout=300, **options)
        return train_forks.run(BIN, "train", *args)

    def run_ok(self, *args):
        result = self.train(*args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def assert_refused(self, result, *words, code=2):
        self.assertEqual(result.returncode, code, result.stderr)
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        for word in words:
            self.assertIn(str(word), lines[0])

    def kill_and_resume(self, args, steps):
        """Trains one run undisturbed and one that is killed at random times and resumed; returns both folders."""
        whole, broken = self.dir / "whole", self.dir / "broken"
        args = [*args, "--steps", steps, "--checkpoint-every", "3", "--log-every", "1"]
        self.run_ok(*args, "--out", whole)
        seed = random.randrange(2**32)
        print(f"kill_and_resume: seed {seed}", file=sys.stderr)
        rng = random.Random(seed)
        kills = resumed = 0
        for attempt in range(100):
            resumed += (broken / "state.safetensors").exists()
            process = subprocess.Popen([BIN / "linnet", "train", *map(str, args), "--auto-resume", "--out", broken],
                                       stderr=subprocess.DEVNULL, start_new_session=True)
            # Kill the first three processes soon after each has written something to resume, so that
            # several resumptions happen. Let a later process finish.
            log = broken / "metrics.jsonl"
            before = log.stat().st_size if log.exists() else 0
            deadline = time.monotonic() + 60
            if kills < 3:
                while process.poll() is None and time.monotonic() < deadline and not (
                        (broken / "state.safetensors").exists() and log.exists() and log.stat().st_size > before):
                    time.sleep(0.005)
                time.sleep(rng.uniform(0, 0.15))
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    kills += 1
            if process.wait(timeout=120) == 0:
                break
        self.assertGreater(kills, 0)
        self.assertGreater(resumed, 0)
        return whole, broken

    def test_killed_and_resumed_equals_undisturbed_copy(self):
        two_threads = [*COPY]
        two_threads[COPY.index("--threads") + 1] = "2"
        whole, broken = self.kill_and_resume(two_threads, 200)
        self.assertEqual(tensors(whole / "model.safetensors"), tensors(broken / "model.safetensors"))
        self.assertEqual(tensors(whole / "state.safetensors"), tensors(broken / "state.safetensors"))
        steps = [record["step"] for record in records(broken) if "lr" in record]
        self.assertEqual(steps, list(range(1, 201)))

    def test_killed_and_resumed_equals_undisturbed_images(self):
        mnist = self.dir / "mnist"
        mnist.mkdir()
        tiny_mnist(mnist)
        # 25 images in batches of 4: the run spans several epochs and their shuffles.
        whole, broken = self.kill_and_resume(
            ["images", *TINY, "--data", mnist, "--validate-every", "5", "--positions", "grid", "--pixel-above",
             "--stem", "3", "--convolution", "2", "--norm-first", "--ema", "0.9", "--accumulate", "2",
             "--checkpoint-layers", "--dropout", "0.1", "--optimizer", "muon"], 24)
        self.assertEqual(tensors(whole / "model.safetensors"), tensors(broken / "model.safetensors"))

    def test_checkpointed_layers_change_nothing(self):
        plain, checkpointed = self.dir / "plain", self.dir / "checkpointed"
        args = [*COPY, "--layers", "3", "--steps", "5"]
        self.run_ok(*args, "--out", plain)
        self.run_ok(*args, "--checkpoint-layers", "--out", checkpointed)
        self.assertEqual(tensors(plain / "model.safetensors"), tensors(checkpointed / "model.safetensors"))

    def test_a_batch_in_parts_is_the_same_batch(self):
        losses = []
        for parts in (1, 3):  # 4 sequences in parts of 1, 1 and 2
            out = self.dir / f"parts{parts}"
            self.run_ok("copy", *TINY, "--max-length", "8", "--steps", "8", "--lr", "1e-2", "--log-every", "1",
                        "--accumulate", parts, "--out", out)
            losses.append([(r["loss"], r["accuracy"]) for r in records(out) if "lr" in r])
        for (loss, accuracy), (other_loss, other_accuracy) in zip(*losses):
            self.assertAlmostEqual(loss, other_loss, delta=1e-4)
            self.assertAlmostEqual(accuracy, other_accuracy, delta=1e-6)

    def test_averages_are_saved_and_change_no_update(self):
        last, average = self.dir / "last", self.dir / "average"
        self.run_ok(*COPY, "--steps", "6", "--out", last)
        self.run_ok(*COPY, "--steps", "6", "--ema", "0.99", "--out", average)
        of_last, of_average = (tensors(d / "state.safetensors") for d in (last, average))
        for name, data in of_last.items():
            self.assertEqual(of_average[name], data, name)
        self.assertNotEqual(tensors(last / "model.safetensors"), tensors(average / "model.safetensors"))
        # A resumed run may start or stop weight averaging.
        self.run_ok("copy", "--resume", "--out", last, "--ema", "0.99", "--steps", "8")
        self.run_ok("copy", "--resume", "--out", average, "--ema", "0", "--steps", "8")

    def test_muon_learns_and_keeps_its_averages(self):
        out = self.dir / "muon"
        self.run_ok("copy", *TINY, "--max-length", "8", "--steps", "60", "--lr", "2e-2", "--lr-drop-at", "0",
                    "--optimizer", "muon", "--log-every", "20", "--out", out)
        losses = [r["loss"] for r in records(out) if "lr" in r]
        self.assertLess(losses[-1], losses[0])
        # Its averages of gradients are not those of Adam.
        self.assert_refused(self.train("copy", "--resume", "--out", out, "--steps", "70", "--optimizer", "adam"),
                            "--optimizer adam", "muon")
        self.run_ok("copy", "--resume", "--out", out, "--steps", "62", "--optimizer", "muon")
        self.assert_refused(self.train(*COPY, "--optimizer", "sgd", "--out", self.dir / "sgd"), "sgd", "radam")

    def test_records_have_time_and_memory(self):
        out = self.dir / "run"
        result = self.run_ok(*COPY, "--steps", "12", "--log-every", "1", "--out", out)
        self.assertIn("an update takes", result.stderr)
        for record in records(out)[:-1]:
            self.assertGreater(record["peak_memory"], 1 << 20)
            self.assertGreater(record["tokens_per_second"], 0)

    def test_interrupt_writes_a_checkpoint(self):
        out = self.dir / "run"
        process = subprocess.Popen([BIN / "linnet", "train", *COPY, "--steps", "100000", "--log-every", "1",
                                    "--out", out], stderr=subprocess.PIPE, text=True)
        while not (out / "metrics.jsonl").exists() or not records(out):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIn("--resume", stderr)
        stopped = records(out)[-1]["step"]
        self.run_ok("copy", "--resume", "--out", out, "--steps", stopped + 2)
        self.assertEqual(records(out)[-1]["step"], stopped + 2)

    def test_config_repeats_a_run(self):
        first, second = self.dir / "first", self.dir / "second"
        self.run_ok(*COPY, "--steps", "5", "--seed", "7", "--out", first)
        self.run_ok("copy", "--config", first / "config.json", "--out", second)
        self.assertEqual(tensors(first / "model.safetensors"), tensors(second / "model.safetensors"))

    def test_what_a_resumption_may_change(self):
        out = self.dir / "run"
        self.run_ok(*COPY, "--steps", "4", "--out", out)
        config, model = (out / "config.json").read_text(), (out / "model.safetensors").read_bytes()
        again = self.run_ok("copy", "--resume", "--steps", "2", "--out", out)
        self.assertIn("nothing to do", again.stderr)
        self.assertEqual((out / "model.safetensors").read_bytes(), model)
        # Settings that make a run fail are not saved.
        self.assertEqual(self.train("copy", "--resume", "--lr", "1e30", "--steps", "9", "--out", out).returncode, 1)
        self.assertEqual((out / "config.json").read_text(), config)
        self.run_ok("copy", "--resume", "--steps", "6", "--lr", "1e-4", "--out", out)
        self.assertEqual(json.loads((out / "config.json").read_text())["lr"], 1e-4)

    def test_auto_resume_starts_or_resumes(self):
        run = [*COPY, "--preset", "paper", "--auto-resume", "--out", self.dir / "run"]
        self.run_ok(*run, "--steps", "4")
        self.assertIn("nothing to do", self.run_ok(*run, "--steps", "4").stderr)
        self.assertIn("from step 4", self.run_ok(*run, "--steps", "6").stderr)
        self.run_ok(*COPY, "--steps", "6", "--out", self.dir / "whole")
        for file in ("model.safetensors", "state.safetensors"):
            self.assertEqual(tensors(self.dir / "run" / file), tensors(self.dir / "whole" / file))
        self.assert_refused(self.train(*run, "--d-model", "64"), "cannot change its model")
        self.assert_refused(self.train(*COPY, "--preset", "none", "--auto-resume", "--out", self.dir / "run"), "none")
        self.assert_refused(self.train(*run, "--resume"), "--resume", "--auto-resume")
        self.assert_refused(self.train(*COPY, "--auto-resume", "--steps", "4"), "--out")

    def test_epochs_are_counted_across_resumptions(self):
        data, out = self.dir / "mnist", self.dir / "run"
        data.mkdir()
        tiny_mnist(data)
        run = ("images", *TINY, "--data", data, "--train-images", "20", "--validation-images", "1", "--out", out)
        self.assert_refused(self.train(*run, "--steps", "3", "--epochs", "2"), "--steps", "--epochs")
        self.run_ok(*run, "--batch", "4", "--steps", "5")  # one epoch
        self.run_ok("images", "--resume", "--out", out, "--batch", "10", "--epochs", "4")  # 3 updates of 10 images
        self.assert_refused(self.train("images", "--resume", "--out", out, "--held-out", "2"), "--held-out 2")
        info = subprocess.run([BIN / "linnet", "info", "--json", out / "model.safetensors"], capture_output=True,
                              text=True, check=True)
        self.assertAlmostEqual(json.loads(info.stdout)["training"]["epochs"], 1 + 3 * 10 / 20)
        config = self.dir / "epochs.json"
        config.write_text('{"epochs": 0.6, "held_out": 0}')  # instead of the preset's number of updates
        said = self.run_ok(*run[:-1], self.dir / "other", "--preset", "demo", "--config", config)
        self.assertIn("3 updates of 4, 0.60 epochs", said.stderr)

    def test_weights_of_another_attention(self):
        first, second = self.dir / "first", self.dir / "second"
        small = ("copy", *TINY, "--max-length", "8", "--lr", "1e-2", "--log-every", "5")
        self.run_ok(*small, "--attention", "full", "--steps", "60", "--out", first)
        self.run_ok(*small, "--feature-map", "favor", "--features", "64", "--steps", "5", "--out", second,
                    "--init", first / "model.safetensors")
        record = records(second)[0]
        self.assertEqual(record["step"], 0)  # evaluation before any update
        self.assertLess(record["validation_loss"], records(first)[0]["loss"])
        third, model = self.dir / "third", first / "model.safetensors"
        fresh = self.run_ok(*small, "--feature-map", "favor", "--steps", "1", "--out", third, "--init", model)
        self.assertIn("random features are drawn anew", fresh.stderr)
        for change, field in ((("--d-ff", "7"), "d_ff is 64 in the file and 7 in the model"),
                              (("--layers", "2"), "layers is 1"),
                              (("--heads", "4"), "heads is 2"), (("--activation", "gelu"), "activation"),
                              (("--norm-first",), "norm_first is false"), (("--symbols", "5"), "vocabulary")):
            self.assert_refused(self.train(*small, *change, "--steps", "5", "--out", self.dir / "other", "--init",
                                           model), model, field)
        broken = self.dir / "broken.safetensors"
        data = model.read_bytes()
        broken.write_bytes(data[:-4] + struct.pack("<f", float("nan")))  # the last element
        self.assert_refused(self.train(*small, "--steps", "5", "--out", self.dir / "other", "--init", broken), broken,
                            "NaN")
        pth = self.dir / "model.pth"
        subprocess.run([BIN / "linnet", "export", model, "--format", "pth", "--out", pth], check=True,
                       capture_output=True)
        self.assert_refused(self.train(*small, "--steps", "5", "--out", self.dir / "other", "--init", pth), pth,
                            "linnet import")
        self.assertFalse((self.dir / "other").exists())

        # A resumed run keeps its own weights. --init is accepted only with the run's original value,
        # and has no effect.
        self.run_ok("copy", "--resume", "--out", third, "--steps", "2", "--init", model)
        self.assert_refused(self.train("copy", "--resume", "--out", third, "--init", broken), "--init", model)
        self.assert_refused(self.train("copy", "--resume", "--out", first, "--init", model), "--init")
        self.assert_refused(self.train("copy", "--resume", "--out", third, "--feature-map", "elu"),
                            'feature_map is "favor" in this run and "elu" in the settings', "--init",
                            third / "model.safetensors")
        self.assert_refused(self.train("copy", "--resume", "--out", third, "--layers", "2"),
                            "layers is 1 in this run and 2 in the settings")

    def test_positions_of_another_kind(self):
        data, first = self.dir / "mnist", self.dir / "first"
        data.mkdir()
        tiny_mnist(data)
        run = ("images", *TINY, "--data", data, "--validation-images", "1", "--steps", "1")
        self.run_ok(*run, "--out", first)
        self.assert_refused(self.train(*run, "--positions", "grid", "--out", self.dir / "grid", "--init",
                                       first / "model.safetensors"),
                            'positions is "sequence" in the file and "grid" in the model')

    def test_every_attention_trains(self):
        small = ("copy", *TINY, "--max-length", "8", "--steps", "60", "--lr", "1e-2", "--log-every", "5")
        for i, attention in enumerate((
                ("full",), ("kernel", "--similarity", "rbf"), ("causal-linear", "--feature-map", "relu"),
                ("causal-linear", "--feature-map", "polynomial2"),
                ("causal-linear", "--feature-map", "rff", "--features", "8"),
                ("causal-linear", "--feature-map", "favor"),
                ("reformer", "--lsh-rounds", "2", "--lsh-buckets", "4", "--lsh-chunk", "4"),
                ("reformer", "--lsh-variant", "simple", "--lsh-buckets", "4", "--lsh-chunk", "5"))):
            out = self.dir / str(i)
            self.run_ok(*small, "--attention", *attention, "--out", out)
            losses = [record["loss"] for record in records(out) if "lr" in record]
            self.assertLess(losses[-1], losses[0], attention)
            info = subprocess.run([BIN / "linnet", "info", out / "model.safetensors"], capture_output=True,
                                  text=True, check=True)
            self.assertIn(attention[0], info.stdout)
            # The runtime evaluates every trained model.
            evaluated = subprocess.run([BIN / "linnet", "eval", out / "model.safetensors"],
                                       capture_output=True, text=True)
            self.assertEqual(evaluated.returncode, 0, evaluated.stderr)
            self.run_ok("copy", "--resume", "--out", out, "--steps", "62")

    def test_bf16_follows_fp32(self):
        probe = self.train(*COPY, "--steps", "1", "--precision", "bf16", "--out", self.dir / "probe")
        if "cannot multiply in bf16" in probe.stderr:
            self.skipTest(probe.stderr.strip())
        curves = []
        for precision in ("fp32", "bf16"):
            out = self.dir / precision
            self.run_ok("copy", *TINY, "--max-length", "8", "--steps", "600", "--lr", "1e-2",
                        "--log-every", "50", "--precision", precision, "--out", out)
            curves.append([record["loss"] for record in records(out) if "lr" in record])
        fp32, bf16 = curves
        self.assertNotEqual(fp32, bf16)
        self.assertLess(fp32[-1], fp32[0] - 1)  # the loss has fallen, so there is a curve to follow
        for a, b in zip(fp32, bf16):
            self.assertAlmostEqual(a, b, delta=0.05)

    def test_the_model_says_what_it_was_trained_on(self):
        out = self.dir / "run"
        self.run_ok(*COPY, "--steps", "3", "--out", out)
        info = subprocess.run([BIN / "linnet", "info", out / "model.safetensors"], capture_output=True,
                              text=True, check=True)
        self.assertIn("random sequences", info.stdout)

    def test_stops_at_a_nan_loss(self):
        out = self.dir / "run"
        args = [*COPY, "--out", out, "--checkpoint-every", "1", "--clip", "0"]
        self.run_ok(*args, "--steps", "2")
        good = tensors(out / "model.safetensors")
        result = self.train("copy", "--resume", "--out", out, "--steps", "100", "--lr", "1e30")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, "is NaN or infinite (at|after) step")
        self.assertIn("--lr", result.stderr)
        for data in tensors(out / "model.safetensors").values():  # the model of the last good step
            values = struct.unpack(f"<{len(data) // 4}f", data)
            self.assertTrue(all(v == v for v in values))
        self.assertEqual(tensors(out / "model.safetensors").keys(), good.keys())

    def test_non_finite_weights_are_not_saved(self):
        # The loss of step 3 is finite; the weights after the update are not.
        out = self.dir / "run"
        self.run_ok(*COPY, "--out", out, "--checkpoint-every", "1", "--clip", "0", "--steps", "2")
        before = (out / "model.safetensors").read_bytes()
        for steps in (3, 10):  # step 3 fails, whether it is the last step or not
            result = self.train("copy", "--resume", "--out", out, "--steps", steps, "--lr", "1e25")
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertRegex(result.stderr.splitlines()[-1], "is NaN or infinite .* step [34]; .*resumed from step 2 ")
            self.assertEqual((out / "model.safetensors").read_bytes(), before)
        fresh = self.dir / "fresh"
        result = self.train(*COPY, "--out", fresh, "--steps", "1", "--clip", "0", "--lr", "1e25")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr.splitlines()[-1], "is NaN or infinite .*no checkpoint")
        self.assertFalse((fresh / "model.safetensors").exists())

    def test_killed_before_its_last_file(self):
        out = self.dir / "run"
        self.run_ok(*COPY, "--out", out, "--steps", "2")
        model = tensors(out / "model.safetensors")
        (out / "model.safetensors").unlink()
        (out / "state.safetensors.tmp.123").write_text("what a killed run was writing")
        self.run_ok("copy", "--resume", "--out", out)
        self.assertEqual(tensors(out / "model.safetensors"), model)
        self.assertEqual([f.name for f in out.iterdir() if "tmp" in f.name], [])

    def test_one_run_a_folder(self):
        out = self.dir / "run"
        process = subprocess.Popen([BIN / "linnet", "train", *COPY, "--steps", "1000000", "--checkpoint-every", "1000000",
                                    "--checkpoint-minutes", "0.001", "--out", out], stderr=subprocess.DEVNULL)
        try:
            while not (out / "state.safetensors").exists():
                self.assertIsNone(process.poll())
                time.sleep(0.01)
            self.assert_refused(self.train("copy", "--resume", "--out", out), out, "another process")
        finally:
            process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 130)

    def test_closed_stderr(self):
        for how in ("2>&-", "2>&1 | true"):
            out = self.dir / f"run{len(how)}"
            arguments = " ".join(map(str, [*COPY, "--steps", 30, "--out", out]))
            subprocess.run(f"{BIN / 'linnet'} train {arguments} {how}", shell=True, check=True, timeout=120)
            deadline = time.monotonic() + 60
            while not (out / "model.safetensors").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(records(out)[-1]["step"], 30)

    def test_full_disk_leaves_the_last_checkpoint(self):
        out = self.dir / "run"
        self.run_ok(*COPY, "--steps", "2", "--out", out)
        before = {f: (out / f).read_bytes() for f in ("model.safetensors", "state.safetensors")}

        def full_disk():
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))

        result = self.train("copy", "--resume", "--out", out, "--steps", "4", preexec_fn=full_disk)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("state.safetensors", result.stderr.splitlines()[-1])
        self.assertIn("checkpoint of step 2", result.stderr.splitlines()[-1])
        for name, data in before.items():
            self.assertEqual((out / name).read_bytes(), data)
        self.assertEqual([f.name for f in out.iterdir() if "tmp" in f.name], [])

    def test_refusals(self):
        out = self.dir / "run"
        self.assert_refused(self.train(*COPY, "--steps", "1"), "--out")
        self.assert_refused(self.train("copy", "--resume", "--out", out), out)
        self.assert_refused(self.train(*COPY, "--out", out, "--steps", "1", "--preset", "nosuch"), "nosuch", "paper")
        self.assert_refused(self.train(*COPY, "--out", out, "--steps", "1", "--heads", "3"), "--heads")
        self.assert_refused(self.train(*COPY, "--out", out, "--steps", "1", "--attention", "linear"), "causal-linear")
        unknown = self.train(*COPY, "--out", out, "--steps", "1", "--attention", "what")
        self.assert_refused(unknown, "unknown --attention 'what'; choose one of causal-linear, full")
        self.assert_refused(self.train(*COPY, "--out", out, "--steps", "1", "--lsh-buckets", "3"), "--lsh-buckets is 3")
        self.assert_refused(self.train(*COPY, "--out", out, "--steps", "1", "--feature-map", "cos"), "cos", "favor")
        self.assert_refused(self.train(*COPY, "--out", out, "--steps", "1", "--nonsense", "3"), "--nonsense")
        self.assert_refused(self.train(*COPY, "--out", out, "--steps", "1", "--precision", "fp8"), "fp8", "bf16")
        self.assert_refused(self.train("images", *TINY, "--out", out), "--data")
        self.assert_refused(self.train("images", *TINY, "--out", out, "--data", self.dir / "none"), "none")
        self.assert_refused(self.train(*COPY, "--out", "/proc/nosuch/run", "--steps", "1"), "/proc/nosuch/run")
        config = self.dir / "config.json"
        for text, word in (('{"task": "images"}', "images"), ('{"layer": 3}', "layer"),
                           ('{"layers": "3"}', "layers"), ('{"lr": 1, "lr": 2}', "'lr' twice"), ("[", "JSON")):
            config.write_text(text)
            self.assert_refused(self.train(*COPY, "--out", out, "--config", config), config, word)
        for flag, value in (("--seed", "-1"), ("--d-ff", "-3"), ("--lr-drop-factor", "nan"), ("--lr", "nan"),
                            ("--accumulate", "65"), ("--ema", "1"), ("--lr-decay-form", "steep"), ("--device", "tpu"),
                            ("--symbols", "2147483647"), ("--threads", "2000"), ("--max-length", "16777216")):
            self.assert_refused(self.train("copy", "--out", out, flag, value), flag)
        self.assert_refused(self.train("copy", "--out", out, "--layers", ""), "--layers: '' is not a number")
        cuda = self.train(*COPY, "--out", out, "--steps", "1", "--device", "cuda")
        if cuda.returncode != 0:
            self.assert_refused(cuda, "CUDA", "docs/gpu.md")
        self.assertFalse(out.exists())

        self.run_ok(*COPY, "--out", out, "--steps", "2")
        self.assert_refused(self.train(*COPY, "--out", out, "--steps", "2"), "--resume")
        self.assert_refused(self.train("images", "--resume", "--out", out), "copy")
        self.assert_refused(self.train("copy", "--resume", "--out", out, "--preset", "demo"), "--preset")
        self.assert_refused(self.train("copy", "--resume", "--out", out, "--d-model", "32"), "state.safetensors")
        log = out / "metrics.jsonl"
        log.write_text('{"step": "x"}\n[]\n' + log.read_text())
        self.run_ok("copy", "--resume", "--out", out, "--steps", "3")
        (out / "state.safetensors").rename(out / "gone")
        self.assert_refused(self.train(*COPY, "--out", out, "--steps", "2"), out / "model.safetensors")
        (out / "gone").rename(out / "state.safetensors")
        state = out / "state.safetensors"
        state.write_bytes(state.read_bytes()[:-7])
        self.assert_refused(self.train("copy", "--resume", "--out", out), "state.safetensors")

    def test_whole_pixels(self):
        """The engine has the training's bits/dim; images are drawn and completed."""
        data, out, rng = self.dir / "color", self.dir / "run", random.Random(6)
        data.mkdir()
        for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
            (data / name).write_bytes(b"".join(bytes([3]) + rng.randbytes(3072) for _ in range(2)))
        args = ["images", *TINY, "--whole-pixels", "--data", data]
        self.run_ok(*args, "--pixel-above", "--stem", "3", "--batch", "2", "--steps", "2", "--out", out)
        def run(*more):
            result = subprocess.run([BIN / "linnet", *map(str, more), "--json"], capture_output=True, text=True,
                                    timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(result.stdout)
        evaluated = run("eval", out, "--data", data)
        self.assertAlmostEqual(evaluated["bits_per_dim"], records(out)[-1]["validation_bits_per_dim"], places=3)
        self.assertEqual(len(evaluated["bits_per_dim_by_row"]), 32)
        self.assertEqual(run("complete", out, "--data", data, "--count", 2, "--out", self.dir / "c.png")["images"], 2)
        grid = self.train(*args, "--positions", "grid", "--out", self.dir / "x")
        self.assert_refused(grid, "sequence positions")
        categorical = self.train(*args, "--head", "categorical", "--out", self.dir / "x")
        self.assert_refused(categorical, "--no-whole-pixels")
        mnist = self.dir / "mnist"
        mnist.mkdir()
        tiny_mnist(mnist)
        gray = self.train("images", *TINY, "--whole-pixels", "--data", mnist, "--out", self.dir / "x")
        self.assert_refused(gray, "--whole-pixels", "gray")

    def test_patches(self):
        """A killed run is resumed. The engine has the training's bits/dim at every precision, and draws images."""
        mnist = self.dir / "mnist"
        mnist.mkdir()
        tiny_mnist(mnist)
        args = ["images", *TINY, "--data", mnist, "--head", "categorical", "--pixel-above", "--stem", "3"]
        patches = ["--patch", "7", "--patch-width", "20", "--patch-convolution", "5", "--attention", "gated-delta-net"]
        whole, broken = self.kill_and_resume([*args, *patches, "--ema", "0.9", "--dropout", "0.1"], 12)
        self.assertEqual(tensors(whole / "model.safetensors"), tensors(broken / "model.safetensors"))

        def linnet(*more):
            result = subprocess.run([BIN / "linnet", *map(str, more)], capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout

        want = records(whole)[-1]["validation_bits_per_dim"]
        for precision, tolerance in (("f32", 1e-3), ("bf16", 0.005), ("int8", 0.005)):
            found = json.loads(linnet("eval", whole, "--data", mnist, "--precision", precision, "--json"))
            self.assertAlmostEqual(found["bits_per_dim"], want, delta=tolerance)
        self.assertIn("a network of width 20 (40 hidden units)", linnet("info", whole))
        linnet("sample", whole, "--count", 2, "--out", self.dir / "a.png")
        linnet("complete", whole, "--data", mnist, "--count", 1, "--out", self.dir / "b.png")
        for change, message in ((["--patch", "5"], "--patch is 5; it must divide"), (["--patch", "0"], "--patch is 0"),
                                (["--patch-width", "8"], "need --patch"), (["--patch-d-ff", "8"], "need --patch"),
                                (["--patch-convolution", "8"], "need --patch")):
            self.assert_refused(self.train(*args, *change, "--out", self.dir / "x"), message)

    def test_categorical_images(self):
        """The engine, in every precision, has the training's bits/dim; a run and its export draw the same images."""
        mnist, out = self.dir / "mnist", self.dir / "run"
        mnist.mkdir()
        tiny_mnist(mnist)
        args = ["images", *TINY, "--head", "categorical", "--data", mnist]
        self.run_ok(*args, "--attention", "gated-delta-net", "--steps", "3", "--batch", "2", "--out", out)

        def linnet(*more):
            result = subprocess.run([BIN / "linnet", *map(str, more)], capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout

        def bits(file):
            return json.loads(linnet("eval", file, "--data", mnist, "--json"))["bits_per_dim"]

        want = records(out)[-1]["validation_bits_per_dim"]
        for precision, tolerance in (("f32", 1e-3), ("bf16", 0.005), ("int8", 0.005)):
            file = self.dir / f"{precision}.safetensors"
            linnet("export", out, "--precision", precision, "--out", file)
            self.assertAlmostEqual(bits(file), want, delta=tolerance)
        self.assertIn("256 classes", linnet("info", out))
        for model, name in ((out, "a.png"), (self.dir / "f32.safetensors", "b.png")):
            linnet("sample", model, "--count", 2, "--seed", 3, "--out", self.dir / name)
        self.assertEqual((self.dir / "a.png").read_bytes(), (self.dir / "b.png").read_bytes())
        reference = subprocess.run([BIN / "linnet", "sample", out, "--sampler", "reference", "--out", self.dir / "c.png"],
                                   capture_output=True, text=True, timeout=60)
        self.assert_refused(reference, "reference scale is for mixtures")
        self.assertFalse((self.dir / "c.png").exists())
        for change, word in ((["--head", "magic"], "categorical"), (["--mixtures", "5"], "--head logistics")):
            self.assert_refused(self.train(*args, *change, "--out", self.dir / "x"), word)

        # To Python's file and back. Without a word about images, 256 outputs for 256 tokens are read as text.
        plain, pth, back = self.dir / "plain", self.dir / "plain.pth", self.dir / "back.safetensors"
        self.run_ok(*args, "--attention", "causal-linear", "--steps", "2", "--out", plain)
        linnet("export", plain, "--format", "pth", "--out", pth)
        again = ["import", pth, "--heads", "2", "--out", back]
        self.assertIn("give --task images", linnet(*again))
        for word in (["--task", "images"], ["--data", mnist], ["--width", 28, "--height", 28]):
            linnet(*again, *word)
            self.assertEqual(bits(back), bits(plain))

    def test_eval_draws_the_lengths_of_the_training(self):
        out = self.dir / "run"
        self.run_ok("copy", *TINY, "--min-length", "13", "--max-length", "14", "--steps", "1", "--out", out)
        shown = subprocess.run([BIN / "linnet", "eval", out, "--limit", "9", "--show", "9"], capture_output=True,
                               text=True, timeout=60)
        lengths = [len(line.split()) - 1 for line in shown.stdout.splitlines() if line.startswith("given")]
        self.assertEqual(lengths, [13] * 9)

    def test_bad_images(self):
        mnist, out = self.dir / "mnist", self.dir / "run"
        mnist.mkdir()
        tiny_mnist(mnist)
        for epochs in ("0.001", "1e300"):
            self.assert_refused(self.train("images", *TINY, "--data", mnist, "--out", out, "--epochs", epochs),
                                "--epochs")
        for channels in ("-1", "5000"):
            self.assert_refused(self.train("images", *TINY, "--data", mnist, "--out", out, "--stem", channels), "--stem is")
        images = mnist / "train-images-idx3-ubyte.gz"
        images.write_bytes(images.read_bytes()[:-20])
        self.assert_refused(self.train("images", *TINY, "--data", mnist, "--out", out), images)
        self.assertFalse(out.exists())


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
