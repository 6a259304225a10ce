#!/usr/bin/env python3
"""End-to-end tests of language models and couplets, on tiny texts that follow a rule.

    tests/text_test.py BIN_DIR [unittest arguments]
"""

import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

import train_forks

BIN = pathlib.Path("build/release/bin").resolve()

FIRST, SECOND = "天日山风花春红高", "地月水雨草秋绿低"  # SECOND[i] answers FIRST[i]
TINY = ["--layers", 2, "--heads", 2, "--d-model", 32, "--threads", 1, "--dropout", 0]


def run(*args):
    return train_forks.run(BIN, *args)


class TextTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_text_test."))
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        rng = random.Random(1)
        for part, count in (("train", 400), ("valid", 40), ("test", 30)):
            folder = cls.dir / "couplets" / part
            folder.mkdir(parents=True)
            pairs = []
            for _ in range(count):
                places = rng.sample(range(len(FIRST)), rng.choice((3, 5)))
                pairs.append((" ".join(FIRST[p] for p in places), " ".join(SECOND[p] for p in places)))
            (folder / "in.txt").write_text("".join(a + "\n" for a, _ in pairs))
            (folder / "out.txt").write_text("".join(b + "\n" for _, b in pairs))
        cls.text = cls.dir / "text.txt"
        cls.text.write_text("".join(rng.choice(("über the sea. ", "under a tree. ")) for _ in range(900)))
        cls.models = {}
        for name, flags in {
                "couplet": ["couplet", "--data", cls.dir / "couplets", "--lr", "5e-3", "--steps", 500,
                            "--lr-warmup", 20, "--batch", 32, "--max-length", 20, "--preset", "small",
                            "--other-lengths", 0],
                "byte": ["text", "--data", cls.text, "--context", 32, "--lr", "5e-3", "--lr-warmup", 20,
                         "--steps", 400],
                "character": ["text", "--data", cls.text, "--unit", "character", "--context", 32, "--lr",
                              "5e-3", "--lr-warmup", 20, "--steps", 400, "--no-tied"]}.items():
            result = run("train", *flags, *TINY, "--out", cls.dir / name)
            assert result.returncode == 0, result.stderr
            cls.models[name] = cls.dir / name / "model.safetensors"

    def refused(self, result, *words):
        self.assertEqual(result.returncode, 2, result.stderr)
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        for word in words:
            self.assertIn(str(word), lines[0])

    def last(self, name, metric):
        lines = (self.dir / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)[metric] for line in lines if metric in line][-1]

    def test_a_presets_convolution_is_not_added_to_those_of_mixers(self):
        for attention, flags, expected in (("causal-linear", [], 4), ("delta-net", [], 0), ("gla", [], 4),
                                           ("delta-net:1,full", [], 4), ("delta-net", ["--convolution", 4], 4),
                                           ("delta-net", ["--short-convolution", 0], 4)):
            out = self.dir / "convolutions"
            shutil.rmtree(out, ignore_errors=True)
            result = run("train", "text", "--preset", "small", *TINY, "--data", self.text, "--context", 16, "--steps", 1,
                         "--attention", attention, *flags, "--out", out)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads((out / "config.json").read_text())["convolution"], expected, (attention, flags))

    def test_the_shipped_model_writes_plays(self):
        model = pathlib.Path("models/shakespeare.safetensors")
        self.assertLess(model.stat().st_size, 3_000_000)
        result = run("generate", model, "--prompt", "ROMEO:", "-n", 3000, "--temperature", 0.7, "--seed", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertTrue(lines[0].startswith("ROMEO:"))
        speakers = [line for line in lines[1:] if line.endswith(":") and line[0].isupper()]
        self.assertGreater(len(speakers), 0, result.stdout)
        common = {"the", "and", "to", "of", "i", "my", "you", "that", "a", "not", "is", "in", "thou", "your"}
        words = result.stdout.lower().replace(",", " ").replace(".", " ").split()
        self.assertGreater(sum(word in common for word in words) / len(words), 0.1, result.stdout)

    def test_couplets_are_answered(self):
        result = run("couplet", self.models["couplet"], "天山花", "日，风春")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[0], "天山花")
        self.assertEqual(lines[1].split()[0], "地水草")
        other = lines[lines.index("日，风春") + 1].split()[0]  # the training data has no line with a comma
        self.assertEqual((len(other), other[1]), (4, "，"))
        drawn = [run("couplet", self.models["couplet"], "--draw", "--seed", 4, "--json", "红高日").stdout
                 for _ in range(2)]
        self.assertEqual(drawn[0], drawn[1])
        answers = json.loads(drawn[0])[0]["answers"]
        self.assertLessEqual(len(answers), 5)
        scores = [a["log_probability"] for a in answers]
        self.assertEqual(scores, sorted(scores, reverse=True))

    def test_training_and_runtime_agree(self):
        result = run("eval", self.models["couplet"], "--data", self.dir / "couplets", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(result.stdout)
        self.assertLess(found["perplexity"], 1.2)
        self.assertEqual((found["pairs"], found["left_out"], found["unknown"]), (30, 0, 0))
        for name in ("byte", "character"):
            self.assertLess(self.last(name, "validation_bits_per_token"), 0.6, name)
            result = run("eval", self.models[name], "--data", self.text, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertLess(json.loads(result.stdout)["bits_per_token"], 0.6, name)

    def test_generates(self):
        for name in ("byte", "character"):
            flags = ["generate", self.models[name], "--prompt", "über the", "--max-tokens", 20]
            result = run(*flags, "--temperature", 0)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(result.stdout.startswith("über the sea. "), result.stdout)
            stopped = json.loads(run(*flags, "--stop", ".", "--temperature", 0, "--json").stdout)
            self.assertEqual((stopped["text"], stopped["ended_by"]), (" sea", "stop"))
            self.assertEqual(run(*flags, "--seed", 3).stdout, run(*flags, "--seed", 3).stdout)

    def test_warns_once_of_texts_longer_than_in_training(self):
        for prompt, tokens, times in (("über", 10, 0), ("über", 100, 1), ("under a tree. " * 5, 100, 1)):
            result = run("generate", self.models["byte"], "--prompt", prompt, "--max-tokens", tokens, "--seed", 1)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stderr.count("was trained on 32 positions"), times, (prompt, tokens))

    def test_drafts_leave_the_text_as_it_is(self):
        flags = ["generate", self.models["byte"], "--prompt", "über the", "-n", 200, "--seed", 4, "--json"]
        plain = json.loads(run(*flags).stdout)
        self.assertNotIn("drafted", plain)
        for draft in (self.models["byte"], "repeats"):
            result = run(*flags, "--draft", draft, "--draft-tokens", 3)
            self.assertEqual(result.returncode, 0, result.stderr)
            found = json.loads(result.stdout)
            self.assertEqual(found["text"], plain["text"])
            self.assertGreater(found["accepted"], 0)
            self.assertLessEqual(found["accepted"], found["drafted"])
        self.refused(run(*flags, "--draft", self.models["character"]), "vocabulary")
        self.refused(run(*flags, "--draft", self.models["couplet"]), "couplet")
        self.refused(run(*flags, "--draft", ""), "file")
        self.assertNotEqual(run(*flags, "--draft-tokens", 3).returncode, 0)

    def test_byte_pairs(self):
        tokenizer = pathlib.Path("tests/golden/tokenizer/byte_level.json")
        out = self.dir / "pairs"
        train = ["train", "text", "--data", self.text, "--context", 32, "--lr", "5e-3", "--lr-warmup", 20, "--steps",
                 300, *TINY]
        result = run(*train, "--unit", "token", "--tokenizer", tokenizer, "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("a text of", result.stderr + result.stdout)
        result = run("generate", out, "--prompt", "über the", "-n", 12, "--temperature", 0)
        self.assertTrue(result.stdout.startswith("über the sea. "), result.stdout)
        found = json.loads(run("eval", out, "--data", self.text, "--json").stdout)
        self.assertEqual(found["unit"], "token")
        size = len(self.text.read_bytes())
        self.assertAlmostEqual(found["bits_per_byte"] * size, found["bits_per_token"] * found["tokens"], delta=1e-6 * size)
        self.assertLess(found["bits_per_byte"], 0.6)
        self.assertIn("459 tokens", run("info", out).stdout)
        refused = self.dir / "refused"
        self.refused(run(*train, "--unit", "token", "--out", refused), "--tokenizer FILE")
        self.refused(run(*train, "--tokenizer", tokenizer, "--out", refused), "--tokenizer", "--unit token")
        self.refused(run(*train, "--unit", "token", "--tokenizer", self.text, "--out", refused), self.text)
        self.assertFalse(refused.exists())

    def test_models_of_flash_linear_attention(self):
        model = pathlib.Path("tests/golden/tokenizer/language_model.safetensors")
        folder, back = self.dir / "fla", self.dir / "back.safetensors"
        result = run("export", model, "--format", "fla", "--out", folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(p.name for p in folder.iterdir()),
                         ["config.json", "model.safetensors", "tokenizer.json"])
        result = run("import", folder, "--out", back)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("464 tokens, 2 layers of 16, 2 heads of gla", result.stdout)
        how = ["--prompt", "Hear me speak", "--seed", 2, "-n", 20, "--json"]
        self.assertEqual(json.loads(run("generate", back, "--precision", "bf16", *how).stdout)["text"],
                         json.loads(run("generate", model, *how).stdout)["text"])
        (folder / "tokenizer.json").unlink()
        result = run("import", folder, "--out", back, "--json")
        self.assertEqual(json.loads(result.stdout)["spec"]["task"], "tokens", result.stderr)
        self.refused(run("generate", back, "--prompt", "a"), "tokens")
        back.unlink()
        self.refused(run("import", folder, "--heads", 2, "--out", back), "--heads")
        self.refused(run("import", folder, "--tokenizer", self.text, "--out", back), self.text)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
        self.refused(run("import", folder, "--out", back), "'mamba'", "gated_deltanet")
        (folder / "config.json").unlink()
        self.refused(run("import", folder, "--out", back), "config.json")
        self.assertFalse(back.exists())
        self.refused(run("export", "models/digits.safetensors", "--format", "fla", "--out", self.dir / "none"),
                     "flash-linear-attention")
        self.assertFalse((self.dir / "none").exists())

    def test_narrow_models(self):
        for name, flags in (("couplet", ["couplet", "天山花"]), ("byte", ["generate"])):
            small = self.dir / f"{name}-int8.safetensors"
            self.assertEqual(run("export", self.models[name], "--precision", "int8", "--out", small).returncode, 0)
            self.assertLess(small.stat().st_size, 0.6 * self.models[name].stat().st_size)
            result = run(flags[0], small, *flags[1:])
            self.assertEqual(result.returncode, 0, result.stderr)
            if name == "couplet":
                self.assertEqual(result.stdout.split()[0], "地水草")
        self.assertIn("16 characters", run("info", self.models["couplet"]).stdout)

    def test_encoder_decoder_learns_too(self):
        out = self.dir / "pair"
        result = run("train", "couplet", "--data", self.dir / "couplets", "--network", "encoder-decoder", "--preset",
                     "small", "--lr", "5e-3", "--steps", 400, "--lr-warmup", 20, "--batch", 32, "--max-length", 20,
                     "--other-lengths", 0, *TINY, "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertLess(self.last("pair", "validation_perplexity"), 1.2)
        model = out / "model.safetensors"
        self.assertIn("encoder-decoder", run("info", model).stdout)
        answer = json.loads(run("couplet", model, "天山花", "--json").stdout)[0]["answers"][0]["text"]
        self.assertEqual(len(answer), 3)
        measured = json.loads(run("eval", model, "--data", self.dir / "couplets", "--json").stdout)
        # Training counts the token that ends the line in its perplexity; the runtime does not.
        self.assertLess(measured["perplexity"], 1.3)

    def test_lines_of_other_lengths(self):
        out = self.dir / "lengths"
        result = run("train", "couplet", "--data", self.dir / "couplets", "--other-lengths", 1, "--steps", 30,
                     "--batch", 16, *TINY, "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        data = (out / "model.safetensors").read_bytes()
        spec = json.loads(json.loads(data[8:8 + int.from_bytes(data[:8], "little")])["__metadata__"]["linnet"])
        self.assertIn("，", spec["characters"])  # though no line of the data has it
        line = "天，日山。风花；春"
        result = run("couplet", out / "model.safetensors", line, "--json")
        answer = json.loads(result.stdout)[0]["answers"][0]["text"]
        self.assertEqual([answer[i] for i in (1, 4, 7)], ["，", "。", "；"])
        self.assertEqual(len(answer), len(line))
        self.refused(run("train", "couplet", "--data", self.dir / "couplets", "--other-lengths", 2, "--out", out),
                     "other")

    def test_every_attention_runs_in_every_precision(self):
        kinds = (("full",), ("full", "--window", 7, "--rotary", "--key-heads", 1), ("kernel", "--similarity", "rbf"),
                 ("causal-linear", "--feature-map", "rff"),
                 ("causal-linear", "--feature-map", "polynomial2", "--convolution", 3),
                 ("reformer", "--lsh-buckets", 4, "--lsh-chunk", 4),
                 ("reformer", "--lsh-variant", "simple", "--lsh-buckets", 4, "--lsh-chunk", 5))
        for i, kind in enumerate(kinds):
            out = self.dir / f"every{i}"
            result = run("train", "text", "--data", self.text, "--context", 16, "--steps", 2, "--batch", 4, *TINY,
                         "--attention", *kind, "--out", out / "text")
            self.assertEqual(result.returncode, 0, result.stderr)
            result = run("train", "couplet", "--data", self.dir / "couplets", "--max-length", 20, "--steps", 2,
                         "--batch", 4, *TINY, "--attention", *kind, "--out", out / "couplet")
            self.assertEqual(result.returncode, 0, result.stderr)
            text, couplet = (out / task / "model.safetensors" for task in ("text", "couplet"))
            for precision in ("f32", "bf16", "int8"):
                for command in (("eval", text, "--data", self.text, "--limit", 2),
                                ("generate", text, "--prompt", "a", "--max-tokens", 30, "--temperature", 0),
                                ("eval", couplet, "--data", self.dir / "couplets", "--limit", 2),
                                ("couplet", couplet, "天山花")):
                    done = run(*command, "--precision", precision)
                    self.assertEqual(done.returncode, 0, (kind, command, precision, done.stderr))

    def test_refuses_invalid_arguments(self):
        couplet, byte = self.models["couplet"], self.models["byte"]
        self.refused(run("couplet", byte, "天"), "text")
        self.refused(run("generate", couplet), "couplet")
        self.refused(run("couplet", couplet, ""), "empty")
        self.refused(run("couplet", couplet, "天" * 30), "exceeds")
        self.refused(run("eval", couplet), "--data")
        self.refused(run("eval", couplet, "--data", self.dir), "train/in.txt")
        self.refused(run("train", "couplet", "--out", self.dir / "never"), "--data")
        self.refused(run("train", "text", "--data", self.text, "--context", 10 ** 6, "--out", self.dir / "never"),
                     "--context")
        self.refused(run("train", "text", "--data", self.text, "--unit", "word", "--out", self.dir / "never"), "--unit")
        self.assertFalse((self.dir / "never").exists())


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(argv=sys.argv, verbosity=2)
