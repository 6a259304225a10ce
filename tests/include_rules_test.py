#!/usr/bin/env python3
"""Checks every #include of the folders in TREES against the tables in HACKING.md, and finds code
that compares the name of a task, an attention or a network.

    tests/include_rules_test.py [SOURCE_DIR]

The tables have the columns `folder | may include` and `public header | folder`. The test fails on an include that they
do not allow, on libtorch outside the folders that may use it, on CUDA's headers outside of linnet/*/cuda/ and
linnet/ops/cuda_*, and on a folder or public header that is missing from its table. To allow another include, change
HACKING.md and give the reason.

The test also fails on comparisons such as `== "images"`: code for one task or attention belongs to its entry in the
registry. COMPARES lists the exceptions, with reasons.
"""

import pathlib
import re
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
TREES = ("linnet", "include", "bench", "experiments", "fuzz", "python")
SOURCES = {".h", ".cc", ".inc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
CUDA = re.compile(r"^(cuda\w*|cublas\w*|curand\w*|nvml|mma|cooperative_groups)\.h$|^(cuda|cub|thrust)/")
CUDA_FILES = re.compile(r"^linnet/(\w+/cuda/|ops/cuda_)")
GENERATED = {"linnet/version.h"}

# Where names are registered: (pattern of files, regular expression). The expression's group matches text that contains
# the names in quotes.
REGISTRIES = (
    ("linnet/tasks/*/task.cc", r'\.name = ("[^"]+")'),
    ("linnet/model/mixers/*.cc", r'(?:\.name = |GatedInfo\()("[^"]+")'),
    ("linnet/model/spec.h", r"EnumNames<NetworkKind> \{[^{]*\{([^}]*)\}"),
)
# Lines that may compare names: pattern of their files (from the root), regular expression of the lines, reason.
COMPARES = (
    ("linnet/tasks/*/*", "", "a task's own folder"),
    ("linnet/model/spec.cc", r"\btask\b", "the file format: files of the first versions have only the task's name"),
    ("linnet/runtime/model_ref.cc", r"\bkind\b", "reference implementations of the mixers, for tests and benchmarks"),
    ("linnet/cli/verb_export.cc", r"\bkind\b", "the file format of fast-transformers, which has some of the attention kinds"),
    ("linnet/cli/verb_import.cc", r"\bkind\b", "the file format of fast-transformers: options for settings that its files lack"),
    ("linnet/train/config.cc", "lr_decay_form", "the form of a decay, not an attention"),
    ("bench/torch/speech.cc", "", "a benchmark: its own methods"),
    ("experiments/*", "", "an experiment: its own methods and records"),
)


class RuleError(Exception):
    pass


def read_table(text):
    """Returns {folder: set of folders that it may include, with "torch" if it may include libtorch}. "everything"
    becomes {"*", "torch"}, "everything that is free of torch" becomes {"*"}; ", but a and b" adds "!a" and "!b"."""
    rules, in_table = {}, False
    for line in text.splitlines():
        cells = [cell.strip().strip("`*") for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|") or len(cells) < 2:
            in_table = False
            continue
        if cells[0].lower() == "folder" and cells[1].lower() == "may include":
            in_table = True
            continue
        if not in_table or set(cells[0]) <= set("-: "):
            continue
        name = cells[0].split("(")[0].strip()
        allowed = cells[1].lower()
        if allowed.startswith("everything"):
            what, _, but = allowed.partition("but ")
            rules[name] = {"*"} if "free of torch" in what else {"*", "torch"}
            rules[name] |= {"!" + folder for folder in re.findall(r"\w+", but) if folder != "and"}
        else:
            parts = re.split(r"[,\s]+", re.sub(r"\(.*?\)", "", allowed).replace("`", ""))
            rules[name] = {part for part in parts if part.strip("–—-")}
    if not rules:
        raise RuleError("HACKING.md has no table with the columns 'folder | may include'")
    return rules


def read_homes(text):
    """Returns {public header: folder} from the table with the columns `public header | folder`."""
    table = re.search(r"^\| public header \| folder \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    if not table:
        raise RuleError("HACKING.md has no table with the columns 'public header | folder'")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    return {header.strip(): folder for headers, folder in rows for header in headers.split(",")}


def row_of(path, rules):
    """The name of the table row for a file: its innermost folder that has a row, or None. Paths in linnet/ are
    relative to linnet/, paths in other trees to the root."""
    return next((folder.as_posix() for folder in path.parents if folder.as_posix() in rules), None)


def sources(root):
    return sorted(file for tree in TREES for file in (root / tree).rglob("*") if file.suffix in SOURCES)


def violations(root, rules, homes):
    """Returns a message per violation. homes: {public header: the folder that implements it}."""
    def folder_of(target):
        name = pathlib.Path(target.removeprefix("linnet/"))
        return homes[name.stem] if len(name.parts) == 1 and name.stem in homes else row_of(name, rules)

    found = []
    for file in sources(root):
        where = file.relative_to(root)
        path = where.relative_to("linnet") if where.parts[0] == "linnet" else where
        public = where.parts[0] == "include"
        row = homes.get(where.stem) if public else row_of(path, rules)
        if row not in rules:
            table = "public header | folder" if public else "folder | may include"
            found.append(f"{where}: it has no row in the table '{table}' of HACKING.md")
            continue
        allowed = rules[row]
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match[1]
            if TORCH.match(target) and "torch" not in allowed:
                found.append(f"{where}:{number}: {row} may not include libtorch ({target})")
            if CUDA.match(target) and not CUDA_FILES.match(where.as_posix()):
                found.append(f"{where}:{number}: only linnet/*/cuda/ and linnet/ops/cuda_* may include {target}")
            if target.split("/")[0] not in TREES:
                continue
            if public and target not in GENERATED and not (root / "include" / target).exists():
                found.append(f"{where}:{number}: a public header may include public headers only, not {target}")
                continue
            other = folder_of(target)
            if "*" in allowed:
                forbidden = "torch" not in allowed and "torch" in rules.get(other, {"torch"})
                forbidden = forbidden or f"!{other}" in allowed
            else:
                forbidden = other not in allowed
            if forbidden and other != row:
                found.append(f"{where}:{number}: {row} may not include {other} ({target})")
            if target not in GENERATED and not (root / target).exists() and not (root / "include" / target).exists():
                found.append(f"{where}:{number}: no such file: {target}")
    return found


def registered_names(root):
    names = set()
    for pattern, expression in REGISTRIES:
        found = [name for file in root.glob(pattern) for group in re.findall(expression, file.read_text())
                 for name in re.findall(r'"([^"]+)"', group)]
        if not found:
            raise RuleError(f"{pattern} registers no name")
        names.update(found)
    return names


def compared_names(root, names):
    name = '"(?:' + "|".join(map(re.escape, sorted(names))) + ')"'
    compares = re.compile(rf"[=!]=\s*{name}|{name}\s*[=!]=")
    found = []
    for file in sources(root):
        where = file.relative_to(root)
        if file.stem.endswith("_test") or file.stem.startswith("test_"):
            continue
        allowed = [re.compile(line) for pattern, line, _ in COMPARES if where.match(pattern)]
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            if compares.search(line) and not any(a.search(line) for a in allowed):
                found.append(f"{where}:{number}: compares by name: {line.strip()}")
    return found


class IncludeRules(unittest.TestCase):
    def test_this_tree(self):
        text = (SOURCE / "HACKING.md").read_text()
        found = violations(SOURCE, read_table(text), read_homes(text))
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_nothing_is_compared_by_its_name(self):
        names = registered_names(SOURCE)
        self.assertLessEqual({"images", "couplet", "causal-linear", "reformer", "lstm"}, names)
        found = compared_names(SOURCE, names)
        self.assertFalse(found, "\n" + "\n".join(found))


class Checker(unittest.TestCase):
    """Tests of the checker itself."""

    TABLE = """
| folder | may include |
|---|---|
| base | – |
| io (files) | base |
| nn | base, io, torch |
| python | base, torch |
| cli | everything that is free of torch, but bench and experiments |
| cli/torch | everything, but bench and experiments |
| bench | everything that is free of torch |
| experiments | everything that is free of torch, but bench |
"""

    HOMES = """
| public header | folder |
|---|---|
| a, c | base |
| b | io |
"""

    def check(self, name, *includes):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for header in ("base/a.h", "io/a.h", "nn/a.h", "cli/a.h", "cli/torch/a.h"):
                (root / "linnet" / header).parent.mkdir(parents=True, exist_ok=True)
                (root / "linnet" / header).touch()
            for tree in ("python", "bench", "experiments", "include/linnet"):
                (root / tree).mkdir(parents=True)
                (root / tree / "a.h").touch()
            trees = ("python/", "bench/", "experiments/", "include/")
            file = root / name if name.startswith(trees) else root / "linnet" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f" # include {i}\n" for i in includes))
            return violations(root, read_table(self.TABLE), read_homes(self.HOMES))

    def test_table(self):
        rules = read_table(self.TABLE)
        self.assertEqual(rules["base"], set())
        self.assertEqual(rules["io"], {"base"})
        self.assertEqual(rules["nn"], {"base", "io", "torch"})
        self.assertEqual(rules["bench"], {"*"})
        self.assertEqual(rules["cli"], {"*", "!bench", "!experiments"})
        self.assertEqual(rules["cli/torch"], {"*", "torch", "!bench", "!experiments"})
        with self.assertRaises(RuleError):
            read_table("no table here")

    def test_allowed(self):
        self.assertEqual(self.check("io/b.cc", '"linnet/io/a.h"', '"linnet/base/a.h"', "<vector>"), [])
        self.assertEqual(self.check("nn/b.cc", "<torch/torch.h>", '"linnet/io/a.h"'), [])
        self.assertEqual(self.check("cli/b.cc", '"linnet/io/a.h"'), [])
        self.assertEqual(self.check("cli/torch/b.cc", '"linnet/nn/a.h"', '"linnet/cli/a.h"', "<torch/torch.h>"), [])

    def test_folder_outside_the_table(self):
        self.assertEqual(len(self.check("base/b.cc", '"linnet/io/a.h"')), 1)
        self.assertEqual(len(self.check("io/b.h", "<linnet/nn/a.h>")), 1)
        self.assertEqual(len(self.check("io/deep/b.h", '"linnet/nn/a.h"')), 1)

    def test_libtorch(self):
        self.assertEqual(len(self.check("io/b.cc", "<torch/torch.h>", '"c10/util/x.h"')), 2)
        self.assertEqual(len(self.check("cli/b.cc", "<ATen/ATen.h>")), 1)
        self.assertEqual(len(self.check("cli/b.cc", '"linnet/nn/a.h"')), 1)
        self.assertEqual(len(self.check("cli/b.cc", '"linnet/cli/torch/a.h"')), 1)

    def test_cuda(self):
        self.assertEqual(self.check("io/cuda/b.cu", "<cuda_runtime.h>", "<mma.h>", '"linnet/base/a.h"'), [])
        self.assertEqual(self.check("nn/cuda/b.cuh", "<cuda_bf16.h>"), [])
        self.assertEqual(len(self.check("io/b.cc", "<cuda_runtime.h>", '"cublasLt.h"')), 2)
        self.assertEqual(len(self.check("io/b.cu", "<cuda.h>", "<cub/cub.cuh>")), 2)

    def test_python(self):
        self.assertEqual(
            self.check("python/b.cc", '"python/a.h"', "<torch/library.h>", '"linnet/base/a.h"'), [])
        self.assertEqual(len(self.check("python/b.cc", '"linnet/io/a.h"')), 1)
        self.assertEqual(len(self.check("nn/b.cc", '"python/a.h"')), 1)
        self.assertEqual(len(self.check("cli/b.cc", '"python/a.h"')), 1)
        self.assertEqual(len(self.check("python/b.cc", '"python/gone.h"')), 1)

    def test_public_headers(self):
        self.assertEqual(self.check("include/linnet/b.h", '"linnet/a.h"', "<vector>"), [])
        self.assertEqual(len(self.check("include/linnet/b.h", '"linnet/base/a.h"')), 1)
        self.assertEqual(len(self.check("base/b.cc", '"linnet/b.h"')), 2)  # base may not include io; b.h does not exist
        self.assertEqual(len(self.check("include/linnet/homeless.h")), 1)
        self.assertEqual(self.check("io/b.cc", '"linnet/a.h"'), [])
        self.assertEqual(self.check("cli/b.cc", '"linnet/a.h"'), [])
        with self.assertRaises(RuleError):
            read_homes("no table here")

    def test_experiments(self):
        self.assertEqual(self.check("experiments/b.cc", '"experiments/a.h"', '"linnet/cli/a.h"', '"linnet/io/a.h"'), [])
        self.assertEqual(len(self.check("experiments/b.cc", '"linnet/cli/torch/a.h"')), 1)
        self.assertEqual(len(self.check("experiments/b.cc", "<torch/torch.h>")), 1)
        self.assertEqual(len(self.check("cli/b.cc", '"experiments/a.h"')), 1)
        self.assertEqual(len(self.check("io/b.cc", '"experiments/a.h"')), 1)

    def test_but(self):
        self.assertEqual(self.check("bench/b.cc", '"experiments/a.h"', '"bench/a.h"'), [])
        self.assertEqual(len(self.check("experiments/b.cc", '"bench/a.h"')), 1)
        self.assertEqual(len(self.check("cli/b.cc", '"bench/a.h"')), 1)
        self.assertEqual(len(self.check("cli/torch/b.cc", '"bench/a.h"', '"experiments/a.h"')), 2)

    def test_compared_names(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            lines = ('if (task == "images") {', 'if ("full" != kind) {', 'task = "images";', 'name == "imagesque"',
                     'MixerSpec{.kind = "full"};', 'spec.task=="images"')
            for name in ("linnet/cli/a.cc", "linnet/tasks/images/a.cc", "linnet/nn/a_test.cc", "linnet/cli/a.py"):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text("\n".join(lines))
            found = compared_names(root, {"images", "full"})
            self.assertEqual([line.split(": ")[0] for line in found], [f"linnet/cli/a.cc:{i}" for i in (1, 2, 6)])

    def test_unknown_folder(self):
        self.assertEqual(len(self.check("new/b.cc")), 1)

    def test_missing_file(self):
        self.assertEqual(len(self.check("io/b.cc", '"linnet/base/gone.h"')), 1)


if __name__ == "__main__":
    unittest.main()
