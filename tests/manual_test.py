#!/usr/bin/env python3
"""Tests the man pages and shell completions that scripts/manual writes.

    tests/manual_test.py BIN_DIR [unittest arguments]
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path("build/release/bin").resolve()
SOURCE = pathlib.Path(__file__).resolve().parent.parent


class Manual(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out = pathlib.Path(tempfile.mkdtemp(prefix="linnet-manual-"))
        cls.addClassCleanup(shutil.rmtree, cls.out)
        subprocess.run([SOURCE / "scripts" / "manual", BIN, cls.out], check=True)
        cls.bash = cls.out / "bash-completion" / "completions" / "linnet"

    def page(self, name):
        return (self.out / "man" / "man1" / f"{name}.1").read_text()

    def test_every_verb_has_a_page(self):
        overview = subprocess.run([BIN / "linnet", "--help"], check=True, capture_output=True, text=True).stdout
        verbs = [line.split()[0] for line in overview.partition("Subcommands:\n")[2].splitlines()
                 if line.startswith("  ") and not line.startswith("   ")]
        self.assertGreater(len(verbs), 10)
        for verb in verbs:
            self.assertIn(f"\\fB{verb}\\fR", self.page("linnet"))
            self.assertIn(".SH SYNOPSIS", self.page(f"linnet-{verb}"))

    def test_a_page_has_options_notes_and_examples(self):
        page = self.page("linnet-sample")
        for part in ("\\fB\\-n\\fR, \\fB\\-\\-count\\fR \\fIN\\fR\nNumber of images [default: 16]", "\\fIMODEL\\fR",
                     "(density, reference)", ".SH EXAMPLES\n.nf\n  linnet sample models/digits.safetensors"):
            self.assertIn(part, page)
        self.assertIn(".SH NOTES", self.page("linnet-complete"))
        self.assertIn("\\fBlinnet bench causal\\-linear\\fR", self.page("linnet-bench-causal-linear"))
        self.assertNotIn("describe", page)

    @unittest.skipUnless(shutil.which("man"), "no man")
    def test_man_gives_no_warnings(self):
        for page in sorted((self.out / "man" / "man1").glob("*.1")):
            done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), page.name)

    def complete(self, *words):
        """Returns bash's completions of the last word."""
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _linnet; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "-c", script, "bash", self.bash, *words], capture_output=True, text=True,
                              cwd=self.out)
        self.assertEqual(done.stderr, "complete: usage" if "usage" in done.stderr else "", done.stderr)
        return done.stdout.split()

    def test_bash_completes_verbs_options_and_values(self):
        self.assertEqual(self.complete("linnet", "sam"), ["sample"])
        self.assertEqual(self.complete("linnet", "bench", "st"), ["step", "stream", "stem"])
        self.assertEqual(self.complete("linnet", "sample", "--cou"), ["--count"])
        self.assertEqual(self.complete("linnet", "bench", "generate", "--random", ""), ["mnist", "cifar10"])
        self.assertIn("fish", self.complete("linnet", "info", "fi"))  # a folder in self.out

    def test_the_other_shells_read_theirs(self):
        for shell, flags, path in (("zsh", ["-n"], "zsh/site-functions/_linnet"),
                                   ("fish", ["--no-execute"], "fish/vendor_completions.d/linnet.fish")):
            text = (self.out / path).read_text()
            self.assertIn("transcribe", text)
            if shutil.which(shell):
                subprocess.run([shell, *flags, self.out / path], check=True)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
