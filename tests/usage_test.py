#!/usr/bin/env python3
"""Tests how the linnet program is called: short flags, suggestions, help, seeds, prompts, run folders.

    tests/usage_test.py BIN_DIR [unittest arguments]
"""

import re
import subprocess

import cli_util
from cli_util import COPY_SPEC, Case, main, model

TEXT_SPEC = {**COPY_SPEC, "task": "text", "unit": "byte", "vocabulary": 259, "classes": 259}


class Usage(Case):
    def test_a_typing_error_gets_a_suggestion(self):
        for arguments, meant in ((["smaple", self.images], "'sample'"), (["bench", "gen"], None),
                                 (["bench", "setp"], "'step'"), (["info", self.images, "--jsno"], "'--json'"),
                                 (["sample", self.images, "--out", "a.png", "--tempature=2"], "'--temperature'"),
                                 (["info", self.images, "--zzzzzzzz"], None)):
            if meant is None:
                self.assertNotIn("did you mean", self.run_linnet(*arguments).stderr)
            else:
                self.refuses(arguments, f"did you mean {meant}?")

    def test_a_misspelled_option_is_named_before_a_missing_one(self):
        self.refuses(["sample", self.images, "--cuont", "4"], "unknown option --cuont; did you mean '--count'?")
        self.refuses(["couplet", "海上明月"], "LINE is required; usage: linnet couplet MODEL LINE")
        self.refuses(["hepl", "sample"], "'hepl' is not one of data, ", "see 'linnet --help'")
        self.refuses(["--verison", "sample"], "unknown option --verison; did you mean '--version'?")
        self.refuses(["sample", self.images, "extra", "--out", "a.png"], "unexpected argument 'extra'",
                     "usage: linnet sample MODEL")

    def test_help_as_a_verb(self):
        self.assertEqual(self.linnet("help"), self.linnet("--help"))
        self.assertEqual(self.linnet("help", "eval"), self.linnet("eval", "--help"))
        self.assertEqual(self.linnet("help", "bench", "step"), self.linnet("bench", "step", "--help"))

    def test_short_flags(self):
        self.assertEqual(self.linnet("-V"), self.linnet("--version"))
        self.linnet("sample", self.images, "--count", 2, "--seed", 3, "--threads", 1, "--out", "long.png")
        self.linnet("sample", "-m", self.images, "-n", 2, "-s", 3, "-t", 1, "-o", "short.png")
        self.assertEqual((self.dir / "long.png").read_bytes(), (self.dir / "short.png").read_bytes())

    def test_images_are_png(self):
        for name in ("a.jpg", "a", "png", "a.png.gz"):
            self.refuses(["sample", self.images, "--out", name], name, ".png")
        self.linnet("sample", self.images, "--count", 1, "--out", "a.PNG")

    def test_a_run_is_a_model(self):
        run = self.dir / "run"
        run.mkdir()
        self.refuses(["info", run], run, "model.safetensors")
        (run / "model.safetensors").write_bytes(self.images.read_bytes())
        self.assertEqual(self.linnet_json("info", run)["parameters"], self.linnet_json("info", self.images)["parameters"])


class Seeds(Case):
    def test_a_drawn_seed_is_shown_and_repeats_the_images(self):
        seeds = set()
        for name in ("a.png", "b.png"):
            said = self.linnet("sample", self.images, "--count", 2, "--out", name)
            seeds.add(int(re.search(r"\(seed (\d+)\)", said)[1]))
        self.assertEqual(len(seeds), 2)
        self.linnet("sample", self.images, "--count", 2, "--out", "again.png", "--seed",
                    self.linnet_json("sample", self.images, "--count", 2, "--out", "c.png")["seed"])
        self.assertEqual((self.dir / "again.png").read_bytes(), (self.dir / "c.png").read_bytes())


class Prompts(Case):
    def setUp(self):
        super().setUp()
        self.text = self.write("text.safetensors", model(TEXT_SPEC))

    def generate(self, prompt, **how):
        arguments = ["generate", self.text, "--seed", 1, "-n", 5, "--json"]
        done = subprocess.run([cli_util.BIN / "linnet", *map(str, arguments), f"--prompt={prompt}"], cwd=self.dir,
                              capture_output=True, timeout=60, **how)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_from_a_file_and_from_standard_input(self):
        self.write("prompt.txt", b"Once\n")
        expected = self.generate("Once\n")
        self.assertEqual(self.generate("@prompt.txt"), expected)
        self.assertEqual(self.generate("-", input=b"Once\n"), expected)
        self.assertEqual(self.linnet("generate", self.text, "Once\n", "--seed", 1, "-n", 5, "--json").encode(), expected)
        self.refuses(["generate", self.text, "--prompt", "@gone.txt"], "gone.txt")

    def test_a_stop_string_is_one_word(self):
        said = self.linnet_json("generate", self.text, "--stop", "x", "Once", "--stop", "y", "-n", 3, "--json")
        self.assertEqual(said["prompt"], "Once")

    def test_a_drawn_seed_is_shown(self):
        done = self.run_linnet("generate", self.text, "-p", "a", "-n", 5)
        seed = re.fullmatch(r"linnet: seed (\d+)\n", done.stderr)[1]
        again = self.run_linnet("generate", self.text, "-p", "a", "-n", 5, "--seed", seed)
        self.assertEqual((again.stdout, again.stderr), (done.stdout, ""))


if __name__ == "__main__":
    main()
