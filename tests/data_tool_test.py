#!/usr/bin/env python3
"""End-to-end tests of `linnet data`, against an HTTP server on this machine.

    tests/data_tool_test.py BIN_DIR [unittest arguments]

Errors of the server are tested in linnet/io/download_test.cc. Some tests need the real files, since linnet verifies
checksums: files in $LINNET_DATA/mnist, $LINNET_DATA/tinyshakespeare and $LINNET_DATA/couplet. Without these files the
tests are skipped.
"""

import http.server
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest

BIN = pathlib.Path("build/release/bin").resolve()
DATA = pathlib.Path(os.environ.get("LINNET_DATA", "/nowhere"))
MNIST, SHAKESPEARE, COUPLETS = DATA / "mnist", DATA / "tinyshakespeare", DATA / "couplet" / "couplet-dataset"
NAMES = [f"{split}-{kind}-ubyte.gz" for split in ("train", "t10k")
         for kind in ("images-idx3", "labels-idx1")]
FIRST_SIZE = 9912422  # bytes of NAMES[0]
needs_mnist = unittest.skipUnless(all((MNIST / name).exists() for name in NAMES),
                                  "no mnist under $LINNET_DATA")


class Handler(http.server.BaseHTTPRequestHandler):
    """/real/NAME: the real file, with ranges; /stall/NAME: the Content-Length of NAMES[0], but only 5000 bytes;
    /archive/NAME: the bytes of server.archive; anything else: 404."""

    def do_GET(self):
        first = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        self.server.requests.append((self.path, first))
        kind, name = self.path.split("/")[-2:]
        if kind == "real":
            data = ((SHAKESPEARE if name == "input.txt" else MNIST) / name).read_bytes()
            self.send_response(206 if first else 200)
            if first:
                self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - first))
            self.end_headers()
            self.wfile.write(data[first:])
        elif kind == "stall":
            self.send_response(200)
            self.send_header("Content-Length", str(FIRST_SIZE))
            self.end_headers()
            self.wfile.write(b"x" * 5000)
            self.server.closing.wait()
        elif kind == "archive":
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.server.archive)))
            self.end_headers()
            self.wfile.write(self.server.archive)
        else:
            self.send_error(404)

    def log_message(self, *_):
        pass


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet-data-"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.requests = []
        self.server.closing = threading.Event()
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.closing.set)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def start(self, *arguments):
        return subprocess.Popen([BIN / "linnet", "data", *map(str, arguments)], cwd=self.dir,
                                env={**os.environ, "no_proxy": "*"}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_data(self, *arguments):
        """Returns (exit code, stdout, stderr)."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def refuses(self, arguments, *fragments):
        code, out, err = self.run_data(*arguments)
        self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
        self.assertTrue(err.startswith("linnet data: "), err)
        for fragment in fragments:
            self.assertIn(str(fragment), err)

    def wait_for_part(self):
        part = self.dir / "mnist" / (NAMES[0] + ".part")
        for _ in range(1000):
            if part.exists() and part.stat().st_size == 5000:
                return part
            time.sleep(0.01)
        self.fail("no bytes came")

    def files(self):
        return sorted(path.name for path in self.dir.rglob("*") if path.is_file())


class Usage(Case):
    def test_help(self):
        for arguments, fragments in (([], ["mnist", "cifar10", "shakespeare", "11.6 MB", "170 MB", "1.12 MB",
                                           "CC BY-SA 3.0", "Krizhevsky 2009", "public domain"]),
                                     (["mnist"], ["https://ossci", "--to", "Examples:\n  linnet data", "Terms: CC BY"]),
                                     (["an4"], ["dldata-public", "Terms: BSD-style", "unpacked into the"]),
                                     (["shakespeare"], ["raw.githubusercontent.com/karpathy/char-rnn", "Terms: public"]),
                                     (["cifar10"], ["https://www.cs.toronto.edu/~kriz/", "--mirror"])):
            code, out, err = self.run_data(*arguments, "--help")
            self.assertEqual((code, err), (0, ""))
            for fragment in fragments:
                self.assertIn(fragment, out)

    def test_bad_usage(self):
        self.refuses([], "mnist", "--help")
        self.refuses(["imagenet", "--to", "a"], "imagenet", "an4, cifar10, couplets, mnist, shakespeare")
        self.refuses(["mnist"], "--to")
        self.refuses(["mnist", "--to", "a", "--mirror", "ftp://host/"], "ftp://host/", "https://")
        self.refuses(["mnist", "--to", "a", "--mirror", self.url, "b"], "b")
        self.assertEqual(self.files(), [])

    def test_folder_that_cannot_be_written(self):
        (self.dir / "file").touch()
        for folder in ("file", "file/a", "/proc", ""):
            self.refuses(["mnist", "--to", folder, "--mirror", self.url], folder)


class Failures(Case):
    def test_every_mirror_fails(self):
        code, out, err = self.run_data("mnist", "--to", "mnist", "--mirror", self.url + "/a/",
                                       "--mirror", self.url + "/b")
        self.assertEqual((code, out), (1, ""))
        lines = err.splitlines()
        self.assertEqual(lines[:2], [f"{self.url}/{name}/{NAMES[0]}: HTTP status 404" for name in "ab"])
        self.assertEqual(len(lines), 3)
        for fragment in ("linnet data: ", f"mnist/{NAMES[0]}", "--mirror URL"):
            self.assertIn(fragment, lines[2])
        self.assertEqual(self.files(), [])

    def test_another_file_is_kept(self):
        (self.dir / "mnist").mkdir()
        (self.dir / "mnist" / NAMES[0]).write_text("mine")
        self.refuses(["mnist", "--to", "mnist", "--mirror", self.url], NAMES[0], "--force")
        self.assertEqual((self.dir / "mnist" / NAMES[0]).read_text(), "mine")
        self.assertEqual(self.server.requests, [])

    def test_interrupted(self):
        process = self.start("mnist", "--to", "mnist", "--mirror", self.url + "/stall/")
        part = self.wait_for_part()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        self.assertEqual((process.returncode, out), (130, ""))
        self.assertRegex(err, rf"stopped.*{NAMES[0]}.*resumes")
        self.assertEqual(part.stat().st_size, 5000)

    def test_two_processes_in_one_folder(self):
        process = self.start("mnist", "--to", "mnist", "--mirror", self.url + "/stall/")
        self.wait_for_part()
        self.refuses(["mnist", "--to", "mnist", "--mirror", self.url], "another process")
        process.terminate()
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)


@needs_mnist
class RealFiles(Case):
    def check(self):
        self.assertEqual(self.files(), sorted(NAMES))
        for name in NAMES:
            self.assertTrue((self.dir / "mnist" / name).read_bytes() == (MNIST / name).read_bytes())

    def test_download(self):
        arguments = ["mnist", "--to", "mnist", "--mirror", self.url + "/none/", "--mirror",
                     self.url + "/real"]
        code, out, err = self.run_data(*arguments)
        self.assertEqual(code, 0, err)
        self.assertEqual(out.count("downloaded"), 4)
        self.assertIn("linnet train images --preset small --data mnist ", out)
        self.assertEqual(err.count("HTTP status 404"), 4)
        self.check()

        self.server.requests.clear()
        (self.dir / "mnist" / NAMES[3]).unlink()
        code, out, err = self.run_data(*arguments, "--json")
        self.assertEqual(code, 0, err)
        self.assertEqual([file["outcome"] for file in json.loads(out)["files"]],
                         ["present"] * 3 + ["downloaded"])
        self.assertEqual(len(self.server.requests), 2)
        self.check()

    def test_continued(self):
        (self.dir / "mnist").mkdir()
        part = (MNIST / NAMES[0]).read_bytes()[:1_000_000]
        (self.dir / "mnist" / (NAMES[0] + ".part")).write_bytes(part)
        (self.dir / "mnist" / (NAMES[2] + ".part")).write_bytes(part)  # the start of NAMES[0], not of NAMES[2]
        (self.dir / "mnist" / NAMES[1]).write_text("mine")
        code, _, err = self.run_data("mnist", "--to", "mnist/", "--force", "--mirror",
                                     self.url + "/real/")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(self.server.requests,
                         [(f"/real/{NAMES[i]}", first)
                          for i, first in ((0, 1_000_000), (1, 0), (2, 1_000_000), (2, 0), (3, 0))])
        self.check()


@unittest.skipUnless((SHAKESPEARE / "input.txt").exists(), "no tinyshakespeare under $LINNET_DATA")
class Shakespeare(Case):
    def test_download(self):
        code, out, err = self.run_data("shakespeare", "--to", "plays/", "--mirror", self.url + "/real/", "--json")
        self.assertEqual((code, err), (0, ""))
        result = json.loads(out)
        self.assertEqual(result["terms"], "public domain")
        self.assertIn(" --data plays/input.txt ", result["next"])
        self.assertTrue((self.dir / "plays" / "input.txt").read_bytes() == (SHAKESPEARE / "input.txt").read_bytes())


def archive(files):
    """The bytes of a gzipped tar archive of {name: bytes}."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class Archives(Case):
    def serve(self, files):
        self.server.archive = archive(files)
        return self.run_data("couplets", "--to", "pairs", "--mirror", self.url + "/archive/")

    @unittest.skipUnless((COUPLETS / "vocabs").exists(), "no couplet/couplet-dataset under $LINNET_DATA")
    def test_unpacked(self):
        files = {f"couplet/{name}": (COUPLETS / name).read_bytes()
                 for name in ("vocabs", "test/in.txt", "test/out.txt")}
        code, out, err = self.serve(files)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^couplet\.tar\.gz: downloaded, [\d.]+ kB\n3 files unpacked\npairs: complete; next: linnet train")
        for name, data in files.items():
            self.assertTrue((self.dir / "pairs" / name.removeprefix("couplet/")).read_bytes() == data)
        code, out, err = self.run_data("couplets", "--to", "pairs", "--json")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(json.loads(out)["files"][0]["outcome"], "present")

    def test_another_archive(self):
        code, out, err = self.serve({"couplet/vocabs": b"another", "couplet/train/in.txt": b""})
        self.assertEqual(code, 2)
        self.assertRegex(err, r"^linnet data: pairs/couplet\.tar\.gz: its file 'vocabs' is missing, or is not the "
                              r"one of couplets; remove the archive and download it again\n$")
        self.assertEqual(self.files(), ["couplet.tar.gz"])

    def test_a_wrong_checksum(self):
        self.server.archive = archive({"an4/README": b"another"})
        code, out, err = self.run_data("an4", "--to", "an4", "--mirror", self.url + "/archive/")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("its SHA-256 does not match", err)
        self.assertEqual(self.files(), [])


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
