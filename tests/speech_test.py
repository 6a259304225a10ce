#!/usr/bin/env python3
"""End-to-end tests of speech: trains models on tones that represent phones, and runs the verbs that use them.

    tests/speech_test.py BIN_DIR [unittest arguments]
"""

import array
import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
import wave

import train_forks
from raw_tensors import tensors

BIN = pathlib.Path("build/release/bin").resolve()

RATE = 16000
TONES = {"AH": 350, "B": 900, "S": 3000}
WORDS = {"BAH": "B AH", "SAB": "S AH B", "ABBA": "AH B B AH", "SABS": "S AH B S"}


def tone_phones(phones, rng, rate=RATE, noise=0.01):
    """Samples of one tone per phone, each after a silence, with noise throughout."""
    samples = []
    for phone in phones:
        pitch = TONES[phone] * rng.uniform(0.95, 1.05)
        for length, loud in ((rng.uniform(0.08, 0.12), 0), (rng.uniform(0.10, 0.16), 0.3)):
            n = int(length * rate)
            samples += [loud * math.sin(2 * math.pi * pitch * i / rate) + rng.gauss(0, noise)
                        for i in range(n)]
    return samples + [rng.gauss(0, noise) for _ in range(int(0.2 * rate))]


def write_wav(path, samples, rate=RATE, channels=1):
    pcm = array.array("h", (int(max(-1, min(1, x)) * 32767) for x in samples for _ in range(channels)))
    with wave.open(str(path), "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(pcm.tobytes())


def corpus(folder, name, count, seed):
    """Writes recordings of words and a manifest; returns the manifest's path."""
    rng = random.Random(seed)
    lines = []
    for i in range(count):
        word = rng.choice(list(WORDS))
        path = folder / f"{name}{i}.wav"
        write_wav(path, tone_phones(WORDS[word].split(), rng))
        lines.append(json.dumps({"audio": path.name, "text": word.lower(), "speaker": f"s{i % 3}"}))
    manifest = folder / f"{name}.jsonl"
    manifest.write_text("\n".join(lines) + "\n")
    return manifest


def run(*args, **options):
    if not options:
        return train_forks.run(BIN, *args)
    return subprocess.run([BIN / "linnet", *map(str, args)], capture_output=True,
                          text=options.pop("text", True), timeout=300, **options)


class SpeechTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_speech_test."))
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.train_set = corpus(cls.dir, "train", 60, 1)
        cls.validation = corpus(cls.dir, "validation", 12, 2)
        cls.dictionary = cls.dir / "words.dict"
        cls.dictionary.write_text("".join(f"{word}  {phones}\n" for word, phones in WORDS.items()))
        cls.models = {}
        for name, flags in {
                "whole": ["--attention", "linear"],
                "causal": ["--attention", "causal-linear", "--normalize", "corpus", "--stack", 20, "--lookahead",
                           15],
                "lstm": ["--network", "lstm", "--heads", 1, "--layers", 1]}.items():
            out = cls.dir / name
            result = cls.train(*flags, "--out", out)
            assert result.returncode == 0, result.stderr
            cls.models[name] = out / "model.safetensors"

    @classmethod
    def arguments(cls, *flags, data=None):
        return ["train", "speech", "--preset", "small", "--data", data or cls.train_set, "--validation",
                   cls.validation, "--dictionary", cls.dictionary, "--layers", 2, "--heads", 2, "--d-model",
                   32, "--convolution", 5, "--dropout", 0.05, "--lr", "5e-3", "--lr-warmup", 20, "--batch",
                   8, "--steps", 400, "--time-masks", 1, "--validate-every", 40, "--checkpoint-every", 80, "--threads", 2,
                   *(["--convolution", 0] if "lstm" in flags else []), *flags]

    @classmethod
    def train(cls, *flags, data=None):
        return run(*cls.arguments(*flags, data=data))

    def records(self, name):
        return [json.loads(line) for line in (self.dir / name / "metrics.jsonl").read_text().splitlines()]

    def eval(self, model, *flags):
        result = run("eval", model, "--data", self.validation, "--dictionary", self.dictionary, "--json",
                     *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def refused(self, result, *words, code=2):
        self.assertEqual(result.returncode, code, result.stderr)
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        for word in words:
            self.assertIn(str(word), lines[0])

    def wav(self, name, phones, seed=9, **options):
        path = self.dir / name
        write_wav(path, tone_phones(phones, random.Random(seed), options.get("rate", RATE)), **options)
        return path

    def test_learns_and_training_and_runtime_agree(self):
        for name, model in self.models.items():
            last = [r for r in self.records(name) if "validation_phone_error_rate" in r][-1]
            self.assertLess(last["validation_phone_error_rate"], 0.15, name)
            self.assertAlmostEqual(self.eval(model)["phone_error_rate"],
                                   last["validation_phone_error_rate"], delta=0.03)
            beam = self.eval(model, "--beam", 8)
            self.assertLess(beam["phone_error_rate"], 0.15)
            self.assertEqual(beam["phones"], beam["substitutions"] + beam["deletions"] +
                             round(beam["phones"] * (1 - beam["phone_error_rate"])) + beam["insertions"])
        self.assertLess(self.eval(self.models["whole"], "--precision", "int8")["phone_error_rate"], 0.2)

    def test_resumed_equals_undisturbed(self):
        whole, broken = self.dir / "undisturbed", self.dir / "broken"
        flags = ["--steps", 40, "--validate-every", 10, "--checkpoint-every", 20, "--lr-patience", 1,
                 "--ema", 0.9]
        self.assertEqual(self.train(*flags, "--out", whole).returncode, 0)
        process = subprocess.Popen([BIN / "linnet", *map(str, self.arguments(*flags, "--out", broken))],
                                   stderr=subprocess.DEVNULL)
        state = broken / "state.safetensors"
        while process.poll() is None and not state.exists():
            pass
        process.kill()
        process.wait()
        if process.returncode != 0:
            result = run("train", "speech", "--resume", "--out", broken)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(tensors(whole / "state.safetensors"), tensors(state))
        self.assertEqual(tensors(whole / "model.safetensors"), tensors(broken / "model.safetensors"))

    def test_reports_skipped_utterances(self):
        rng = random.Random(4)
        folder = self.dir / "odd"
        folder.mkdir()
        manifest = corpus(folder, "odd", 10, 3)
        write_wav(folder / "short.wav", tone_phones(["B"], rng)[:1600])
        (folder / "noise.wav").write_bytes(b"no sound at all")
        with manifest.open("a") as out:
            for line in ({"audio": "odd0.wav", "text": "bah xyzzy"}, {"audio": "odd1.wav", "text": "XYZZY"},
                         {"audio": "short.wav", "phones": "B B B B B B"},
                         {"audio": "noise.wav", "text": "bah"}):
                out.write(json.dumps(line) + "\n")
        result = self.train("--steps", 2, "--out", self.dir / "odd-run", data=manifest)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("XYZZY"), 1, result.stderr)
        self.assertIn("short.wav: its 6 phones do not fit", result.stderr)
        self.assertIn("noise.wav: not readable as audio", result.stderr)
        self.assertIn("10 utterances", result.stderr)

    def test_stops_at_nan_weights(self):
        out = self.dir / "diverged"
        result = self.train("--steps", 20, "--lr", "1e30", "--clip", 0, "--out", out)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, "is NaN or infinite (at|after) step")
        self.assertFalse((out / "model.safetensors").exists())

    def test_refuses_invalid_settings(self):
        out = self.dir / "never"
        self.refused(run("train", "speech", "--out", out), "--data")
        self.refused(run("train", "speech", "--out", out, "--data", self.train_set), "--validation")
        self.refused(run("train", "speech", "--out", out, "--data", self.train_set, "--validation",
                         self.validation), "dictionary")
        self.refused(self.train("--out", out, "--stride", 12), "--stride")
        self.refused(self.train("--out", out, "--convolution", 4), "--convolution", "odd")
        self.refused(self.train("--out", out, "--attention", "none"), "attention", "linear")
        self.refused(self.train("--out", out, "--batch", 100), "--batch")
        self.assertFalse(out.exists())

    def test_transcribes(self):
        sound = self.wav("said.wav", ["S", "AH", "B"])
        for model in self.models.values():
            result = run("transcribe", model, sound)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout.split(":")[1].split()[1::2], ["S", "AH", "B"])
            heard = json.loads(run("transcribe", model, sound, "--json").stdout)[0]
            self.assertEqual([p["phone"] for p in heard["phones"]], ["S", "AH", "B"])
            times = [p["seconds"] for p in heard["phones"]]
            self.assertEqual(times, sorted(times))
            self.assertLess(times[-1], heard["seconds"])
            self.assertEqual(heard["remarks"], [])

    def test_reads_a_pipe(self):
        sound = self.wav("piped.wav", ["B", "AH"]).read_bytes()
        for flags in ([], ["--causal"]):
            result = run("transcribe", self.models["causal"], *flags, "-", input=sound, text=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            text = result.stdout.decode().split(":")[-1]
            self.assertEqual(text.split()[1::2], ["B", "AH"])
        # A program that writes WAV to a pipe does not know the length of the data. It writes a maximum into the header.
        endless = sound[:40] + b"\xff\xff\xff\x7f" + sound[44:]
        result = run("transcribe", self.models["causal"], "--causal", "--json", "-", input=endless,
                     text=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([json.loads(line)["phone"] for line in result.stdout.decode().splitlines()],
                         ["B", "AH"])

    def test_streams_in_constant_memory(self):
        def peak(path):
            child = subprocess.Popen([BIN / "linnet", "transcribe", self.models["causal"], "--causal",
                                      "--threads", "1", path], stdout=subprocess.PIPE)
            with child.stdout:
                out = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = status
            self.assertEqual(status, 0)
            return usage.ru_maxrss, len(out.splitlines())
        rng = random.Random(6)
        ten = tone_phones(["AH", "B", "S"] * 14, rng)[:10 * RATE]
        short, long = self.dir / "ten.wav", self.dir / "long.wav"
        write_wav(short, ten)
        write_wav(long, ten * 60)
        (before, few), (after, many) = peak(short), peak(long)
        self.assertGreater(many, 40 * few)
        self.assertLess(after, before + 2000)  # kB

    def test_bad_recordings_leave_the_rest_alone(self):
        good = self.wav("good.wav", ["S", "AH", "B"])
        empty, text, cut = self.dir / "empty.wav", self.dir / "notes.txt", self.dir / "cut.wav"
        empty.write_bytes(b"")
        text.write_text("shopping list\n")
        cut.write_bytes(good.read_bytes()[:-3000])
        tiny = self.dir / "tiny.wav"
        write_wav(tiny, [0.1] * 100)
        nothing = self.dir / "nothing.wav"
        write_wav(nothing, [])
        files = [empty, text, cut, tiny, nothing, self.dir / "missing.wav", self.dir, good]
        for model, flags in ((self.models["whole"], []), (self.models["causal"], ["--causal"])):
            result = run("transcribe", model, *flags, *files)
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stdout.strip().splitlines()[-1].split()[-1], "B")
            lines = result.stderr.strip().splitlines()
            bad = 6 if flags else 7  # a stream shorter than a frame is no error
            self.assertEqual(len(lines), bad + 1, result.stderr)
            for file, line in zip([f for f in files if not (flags and f == tiny)], lines[:bad]):
                self.assertIn(str(file), line)
            self.assertIn(f"{bad} of 8", lines[-1])
        found = json.loads(run("transcribe", self.models["whole"], "--json", text, good).stdout)
        self.assertIn("not readable as audio", found[0]["error"])
        self.assertEqual(found[1]["phones"][0]["phone"], "S")

    def test_converts_what_it_can(self):
        rng = random.Random(9)
        phones = ["S", "AH", "B"]
        for name, options, remark in (("stereo", {"channels": 2}, None), ("high", {"rate": 48000}, None),
                                      ("cd", {"rate": 44100}, None),
                                      ("phone", {"rate": 8000}, "nothing above 4000 Hz")):
            sound = self.wav(name + ".wav", phones, **options)
            result = run("transcribe", self.models["whole"], sound)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout.split(":")[1].split()[1::2], phones, name)
            self.assertIn(remark or "", result.stderr)
            self.assertEqual(result.stderr == "", remark is None, result.stderr)
        silent, loud = self.dir / "silent.wav", self.dir / "loud.wav"
        write_wav(silent, [0] * RATE)
        write_wav(loud, [50 * x for x in tone_phones(phones, rng)])
        result = run("transcribe", self.models["whole"], silent, loud)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("silent", result.stderr.splitlines()[0])
        self.assertIn("clipped", result.stderr.splitlines()[1])

    def test_refuses_models_that_do_not_fit(self):
        sound = self.wav("any.wav", ["B"])
        self.refused(run("transcribe", self.models["whole"], "--causal", sound), "causal-linear")
        self.refused(run("transcribe", self.models["causal"], "--causal", "--beam", 4, sound), "--beam")
        narrow = run("transcribe", self.models["lstm"], "--precision", "int8", sound)
        self.assertEqual(narrow.returncode, 0, narrow.stderr)
        self.refused(run("transcribe", "models/digits.safetensors", sound), "speech")
        self.refused(run("sample", self.models["whole"], "--out", self.dir / "x.png"), "speech")
        self.refused(run("eval", self.models["whole"]), "--data")
        self.refused(run("eval", self.models["whole"], "--data", self.validation), "dictionary")
        other = self.dir / "other.jsonl"
        other.write_text('{"audio": "any.wav", "phones": "ZH"}\n')
        self.refused(run("eval", self.models["whole"], "--data", other), "ZH")
        self.refused(run("eval", self.models["whole"], "--data", self.validation, "--show", 3), "--show")
        self.refused(run("eval", self.models["whole"], "--data", self.validation, "--dictionary",
                         self.dictionary, "--split", "train"), "--split")
        self.refused(run("eval", "models/digits.safetensors", "--beam", 4), "--beam")
        self.dictionary.with_name("bad.dict").write_bytes(b"BAH B A\xff\n")
        self.refused(run("eval", self.models["whole"], "--data", self.validation, "--dictionary",
                         self.dictionary.with_name("bad.dict")), "bad.dict: line 1")
        other.write_text('{"audio": "any.wav", "text": "nobody knows"}\n')
        self.refused(run("eval", self.models["whole"], "--data", other, "--dictionary", self.dictionary),
                     "KNOWS", "NOBODY")

    def test_info_and_export(self):
        shown = run("info", self.models["whole"])
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("3 phones", shown.stdout)
        narrow = self.dir / "narrow.safetensors"
        result = run("export", self.models["whole"], "--precision", "int8", "--out", narrow)
        self.assertEqual(result.returncode, 0, result.stderr)
        sound = self.wav("exported.wav", ["S", "B"])
        self.assertEqual(run("transcribe", narrow, sound).stdout,
                         run("transcribe", self.models["whole"], "--precision", "int8", sound).stdout)

    @unittest.skipUnless((pathlib.Path(os.environ.get("LINNET_DATA", "/none")) / "an4").exists(),
                         "LINNET_DATA has no an4/")
    def test_the_shipped_models_recognize_an4(self):
        an4 = pathlib.Path(os.environ["LINNET_DATA"]) / "an4"
        for name, most in (("phones", 0.15), ("phones-causal", 0.2)):
            model = pathlib.Path("models") / f"{name}.safetensors"
            result = run("eval", model, "--data", an4, "--split", "validation", "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertLess(json.loads(result.stdout)["phone_error_rate"], most)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(argv=sys.argv, verbosity=2)
