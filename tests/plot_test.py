#!/usr/bin/env python3
"""End-to-end tests of linnet plot, on synthetic metrics.jsonl files.

    tests/plot_test.py BIN_DIR [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

BIN = pathlib.Path("build/release/bin").resolve()


def records(steps=100, metric="bits_per_dim", validate_every=20):
    """The metrics of a run, in the format of linnet train."""
    for step in range(10, 10 * steps + 1, 10):
        yield {"step": step, "seconds": step * 0.5, "lr": 1e-3, metric: 3 - step / 1000,
               "tokens_per_second": 2e4}
        if validate_every and step % (10 * validate_every) == 0:
            yield {"step": step, "seconds": step * 0.5, "validation_" + metric: 2.9 - step / 1000}


class Plot(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_plot_test."))
        self.addCleanup(shutil.rmtree, self.dir)
        self.run_dir = self.make_run("runs/a", records())

    def make_run(self, name, lines, tail=""):
        folder = self.dir / name
        folder.mkdir(parents=True)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text + tail)
        return folder

    def plot(self, *arguments, env=None, program=None):
        return subprocess.run([program or BIN / "linnet", "plot", *map(str, arguments)],
                              cwd=self.dir, env={**os.environ, **(env or {})}, capture_output=True,
                              text=True, timeout=300)

    def plot_ok(self, *arguments):
        done = self.plot(*arguments)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        self.assertEqual(done.stderr, "")
        return done.stdout

    def files(self):
        return {path: path.read_bytes() for path in self.dir.rglob("*") if path.is_file()}

    def refuses(self, arguments, *fragments, code=2, **how):
        """Expects failure: one line on stderr with these fragments, this exit code, and no file written."""
        before = self.files()
        done = self.plot(*arguments, **how)
        said = f"{arguments}: exit {done.returncode}, stdout {done.stdout!r}, stderr {done.stderr!r}"
        self.assertEqual(done.returncode, code, said)
        self.assertEqual(done.stderr.count("\n"), 1, said)
        self.assertTrue(done.stderr.startswith("linnet"), said)
        self.assertEqual(done.stdout, "", said)
        for fragment in fragments:
            self.assertIn(str(fragment), done.stderr, said)
        self.assertEqual(self.files(), before, said)

    def assert_picture(self, path, width=800, height=500):
        data = (self.dir / path).read_bytes()
        if str(path).endswith(".svg"):
            root = xml.etree.ElementTree.fromstring(data)
            self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
            self.assertEqual((root.get("width"), root.get("height")), (f"{width}px", f"{height}px"))
        else:
            self.assertEqual(data[:16], b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
            self.assertEqual(struct.unpack(">II", data[16:24]), (2 * width, 2 * height))

    def test_help(self):
        text = self.plot_ok("--help")
        self.assertIn("Examples:\n  linnet plot", text)
        overview = subprocess.run([BIN / "linnet", "--help"], capture_output=True, text=True)
        self.assertIn("plot", overview.stdout)
        self.assertRegex(self.plot_ok("--version"), r"^linnet \d+\.\d+\.\d+\n$")

    def test_one_run(self):
        self.assertEqual(self.plot_ok("runs/a"), "wrote plot.png\n")
        self.assert_picture("plot.png")
        self.assertEqual(self.plot_ok("runs/a/metrics.jsonl", "--out", "x.svg", "--out", "y.png"),
                         "wrote x.svg\nwrote y.png\n")
        self.assert_picture("x.svg")
        self.assertEqual((self.dir / "y.png").read_bytes(), (self.dir / "plot.png").read_bytes())

    def test_every_option_changes_the_picture(self):
        self.make_run("runs/b", records(50, validate_every=0))
        plain = ["runs/a", "runs/b"]
        pictures = {}
        for options in ([], ["--log-x"], ["--log-y"], ["--x", "time"], ["--from", "300"],
                        ["--to", "300"], ["--x", "time", "--to", "2m"], ["--smooth", "9"],
                        ["--title", "T"], ["--label", "one", "--label", "two"], ["--y", "lr"],
                        ["--y", "validation_bits_per_dim"], ["--theme", "dark"]):
            runs = ["runs/a"] if "validation_bits_per_dim" in options else plain
            self.plot_ok(*runs, *options)
            self.assert_picture("plot.png")
            pictures[(self.dir / "plot.png").read_bytes()] = options
        self.assertEqual(len(pictures), 13)

    def test_panels(self):
        self.plot_ok("runs/a", "--y", "bits_per_dim", "--y", "lr", "--out", "a.svg")
        self.assert_picture("a.svg", 1120, 440)

    def test_json_and_list(self):
        self.make_run("more/a", records(metric="loss"))
        said = json.loads(self.plot_ok("runs/a", "--json"))
        self.assertEqual(said["out"], ["plot.png"])
        self.assertEqual((said["x"], said["y"]), ("step", ["bits_per_dim"]))
        self.assertEqual(said["runs"],
                         [{"path": "runs/a/metrics.jsonl", "label": "a", "records": 105}])
        (self.dir / "plot.png").unlink()
        text = self.plot_ok("runs/a", "more/a", "--list")
        self.assertEqual(len(text.splitlines()), 2)
        self.assertIn("more/a/metrics.jsonl: 105 records, steps 10 to 1000: lr, loss,", text)
        listed = json.loads(self.plot_ok("runs/a", "--list", "--json"))
        self.assertEqual(listed[0]["metrics"],
                         ["lr", "bits_per_dim", "tokens_per_second", "validation_bits_per_dim"])
        self.assertFalse((self.dir / "plot.png").exists())
        labels = json.loads(self.plot_ok("runs/a", "more/a", "--y", "lr", "--json"))["runs"]
        self.assertEqual([run["label"] for run in labels], ["runs/a", "more/a"])

    def test_a_run_that_is_going_on(self):
        whole = '{"step":1010,"seconds":505,"bits_per_dim":1}'
        for size in range(1, len(whole)):
            log = self.run_dir / "metrics.jsonl"
            log.write_text("".join(json.dumps(r) + "\n" for r in records()) + whole[:size])
            self.assertIn("105 records", self.plot_ok("runs/a", "--list"))
        self.plot_ok("runs/a")

    def test_what_is_no_number(self):
        lines = [{"step": 1, "loss": 1}, {"step": 2, "loss": float("nan")}]
        self.make_run("bad", lines)
        self.refuses(["bad"], "bad/metrics.jsonl:2: not a record")
        lines[1]["loss"] = None
        self.make_run("gap", lines + [{"step": 3, "loss": 1e308}, {"step": 1e15, "loss": -1e-308}])
        self.plot_ok("gap")
        self.refuses(["gap", "--x", "time"], "nothing to show")
        self.make_run("null", [{"step": 1, "loss": None}])
        self.refuses(["null"], "nothing to show")
        self.refuses(["runs/a", "--log-y", "--y", "lr", "--from", "2000"], "steps go from 10 to 1000")
        self.make_run("zero", [{"step": 1, "loss": 0}])
        self.refuses(["zero", "--log-y"], "nothing to show", "logarithmic")

    def test_bad_input(self):
        (self.dir / "empty").mkdir()
        self.make_run("new", [])
        self.make_run("broken", records(5), tail="{oops}\n")
        self.make_run("copy", records(metric="loss"))
        (self.dir / "shut.png").mkdir()
        for arguments, fragments in (
                ([], ["RUN"]),
                (["nowhere"], ["nowhere", "no such run"]),
                (["empty"], ["empty/metrics.jsonl", "linnet train"]),
                (["new"], ["new/metrics.jsonl", "no records yet"]),
                (["broken"], ["broken/metrics.jsonl:6:"]),
                (["runs/a", "broken"], ["broken/metrics.jsonl:6:"]),
                (["runs/a", "--y", "mood"], ["'mood'", "lr, bits_per_dim, tokens_per_second"]),
                (["runs/a", "copy"], ["copy", "'bits_per_dim'", "lr, loss"]),
                (["runs/a", "--x", "mood"], ["--x"]),
                (["runs/a", "--from", "soon"], ["'soon'", "number"]),
                (["runs/a", "--from", "nan"], ["'nan'"]),
                (["runs/a", "--x", "time", "--to", "soon"], ["'soon'", "90s"]),
                (["runs/a", "--from", "300", "--to", "200"], ["--from"]),
                (["runs/a", "--smooth", "0"], ["--smooth"]),
                (["runs/a", "--theme", "pink"], ["--theme"]),
                (["runs/a", "--label", "a", "--label", "b"], ["2 labels for 1 runs"]),
                (["runs/a", "--out", "plot.pdf"], ["plot.pdf", ".png or .svg"]),
                (["runs/a", "--out", ""], [".png or .svg"]),
                (["runs/a", "--out", "no/plot.png"], ["no/plot.png", "does not exist"]),
                (["runs/a", "--out", "shut.png"], ["shut.png", "folder"]),
                (["runs/a", "--out", "good.png", "--out", "no/bad.svg"], ["no/bad.svg"]),
                (["runs/a", "--what"], ["--what"])):
            self.refuses(arguments, *fragments)

    def test_a_folder_of_runs_is_its_runs(self):
        self.make_run("runs/b", records())
        (self.dir / "runs" / "no run").mkdir()
        listed = json.loads(self.plot_ok("runs", "--list", "--json"))
        self.assertEqual([run["path"] for run in listed], ["runs/a/metrics.jsonl", "runs/b/metrics.jsonl"])
        self.plot_ok("runs", "--out", "both.png")
        self.plot_ok("runs/a", "runs/b", "--out", "named.png")
        self.assertEqual((self.dir / "both.png").read_bytes(), (self.dir / "named.png").read_bytes())
        self.refuses(["runs/no run", "--out", "none.png"], "no run")

    def test_odd_names(self):
        self.make_run("line\nfeed", records(5))
        folder = os.fsencode(self.dir) + b"/\xff\xfe"
        os.mkdir(folder)
        shutil.copy(self.run_dir / "metrics.jsonl", folder + b"/metrics.jsonl")
        for out in ("a.png", "a.svg"):
            done = subprocess.run([BIN / "linnet", "plot", "line\nfeed", folder, "--json", "--out",
                                   out], cwd=self.dir, capture_output=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["runs"][0]["label"], "line\nfeed")
            self.assert_picture(out)

    def test_a_machine_without_fonts(self):
        (self.dir / "fonts.conf").write_text('<?xml version="1.0"?><fontconfig/>')
        self.refuses(["runs/a"], "plot.png", "no font", "fonts-dejavu-core", code=1,
                     env={"FONTCONFIG_FILE": str(self.dir / "fonts.conf")})

    def test_linnet_runs_linnet_plot(self):
        libraries = subprocess.run(["ldd", BIN / "linnet"], capture_output=True, text=True,
                                   check=True).stdout
        self.assertNotIn("cairo", libraries)
        folder = self.dir / "bin"
        folder.mkdir()
        shutil.copy(BIN / "linnet", folder)
        self.refuses(["runs/a"], folder / "linnet-plot", "scripts/build", program=folder / "linnet",
                     env={"PATH": "/nowhere"})


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
