#!/usr/bin/env python3
"""Tests the commands in the documents: their options exist, commands of README.md that need no data succeed, and the
server answers the curl commands.

    tests/documented_commands_test.py BIN_DIR SOURCE_DIR [unittest arguments]
"""

import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

from serve_util import Server

BIN = SOURCE = pathlib.Path()
PAGES = ["README.md", "README.zh.md", "RESULTS.md", "HACKING.md", "models/README.md", "python/README.md", "docs"]


def lines_of_blocks(page):
    """The lines of a page's code blocks. A line that ends in a backslash is joined with the next one, and so is a line
    of curl within quotes."""
    inside, joined = False, ""
    for line in page.read_text().splitlines():
        if line.strip().startswith("```"):
            inside, joined = not inside, ""
        elif inside and line.endswith("\\"):
            joined += line[:-1]
        elif inside and (joined + line).startswith("curl ") and (joined + line).count("'") % 2:
            joined += line
        elif inside:
            yield (joined + line).strip()
            joined = ""


def words(command):
    return shlex.split(command, comments=True)


def documented(program):
    """Yields (page, words after the program's name) for each documented command of a program."""
    pages = [path for name in PAGES for path in ([SOURCE / name] if name.endswith(".md") else
                                                 sorted((SOURCE / name).rglob("*.md")))]
    for page in pages:
        for line in lines_of_blocks(page):
            if match := re.match(rf"(?:\$ ?)?(?:\S*/)?{program}\s+(\S.*)", line):
                yield page.relative_to(SOURCE), words(match[1].split(" | ")[0].split(" 2>")[0])


@functools.cache
def help_of(*verb):
    """The help of a verb, or None if the program that has the verb is not built."""
    run = subprocess.run([BIN / "linnet", *verb, "--help"], capture_output=True, text=True)
    if run.returncode != 0 and "no such program here" in run.stderr:
        return None
    assert run.returncode == 0, (verb, run.stderr)
    return run.stdout


class Options(unittest.TestCase):
    def test_exist(self):
        checked = 0
        for page, command in documented("linnet"):
            depth = 2 if command[0] in ("train", "bench", "reproduce", "data") else 1  # words of the verb
            text = help_of(*command[:depth])
            if text is None:
                continue
            known = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))
            for option in (word.split("=")[0] for word in command[depth:] if re.match(r"--?[a-zA-Z]", word)):
                with self.subTest(page=str(page), command=" ".join(command), option=option):
                    self.assertIn(option, known)
                checked += 1
        self.assertGreater(checked, 30)


class Commands(unittest.TestCase):
    def test_of_the_readme_run(self):
        """Runs commands that need neither data nor minutes, unchanged, in a folder with the shipped models."""
        ran = set()
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(SOURCE / "models", pathlib.Path(folder, "models"))
            for page, command in documented("linnet"):
                if page.name != "README.md" or page.parent != pathlib.Path(".") or "--data" in command or \
                        command[0] not in ("info", "sample", "couplet", "generate", "export") or \
                        any(word.startswith("runs/") for word in command):
                    continue
                with self.subTest(" ".join(command)):
                    run = subprocess.run([BIN / "linnet", *command], cwd=folder, capture_output=True, text=True)
                    self.assertEqual(run.returncode, 0, run.stderr)
                    ran.add(command[0])
        self.assertEqual(ran, {"info", "sample", "couplet", "generate", "export"})

    @unittest.skipUnless(shutil.which("curl"), "no curl")
    def test_with_curl_are_answered(self):
        models = [SOURCE / "models" / f"{name}.safetensors" for name in ("couplet", "shakespeare")]
        if help_of("serve") is None:
            self.skipTest("no linnet-serve")
        answered = 0
        with tempfile.TemporaryDirectory() as folder, \
                Server(BIN, models, "--state-folder", folder, "--chat", "plain") as server:
            for page, command in documented("curl"):
                with self.subTest(page=str(page), command=" ".join(command)):
                    command = [word.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}") for word in command]
                    run = subprocess.run(["curl", "--silent", "--fail-with-body", *command], capture_output=True,
                                         text=True)
                    self.assertEqual(run.returncode, 0, run.stdout)
                    self.assertIsNone(json.loads(run.stdout).get("error"))
                    answered += 1
        self.assertGreater(answered, 1)


if __name__ == "__main__":
    BIN, SOURCE = pathlib.Path(sys.argv.pop(1)).resolve(), pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
