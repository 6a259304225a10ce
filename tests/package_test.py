"""Installs linnet into a folder and builds outside programs against it: one with a custom attention kind, and the
examples of docs/attention, whose commands are run as well. Arguments: the build folder, the source folder."""
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import wave


WITH_TORCH = ("ops", "nn", "train")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def program(pages):
    """A source file with the examples of all pages, one function each."""
    includes, bodies = set(), []
    for page in pages:
        for block in blocks(page, "cpp"):
            lines = block.splitlines()
            includes.update(line for line in lines if line.startswith("#include"))
            body = "\n".join(line for line in lines if not line.startswith("#include"))
            bodies.append(f"void Page{len(bodies)}() {{\n#line 1 \"{page.name}\"\n{body}\n}}\n")
    calls = "\n".join(f"  Page{i}();" for i in range(len(bodies)))
    return "\n".join([*sorted(includes), *bodies, "void RunPages();", f"void RunPages() {{\n{calls}\n}}\n"])


class PackageTest(unittest.TestCase):
    def run_ok(self, *command, **options):
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900, **options)
        self.assertEqual(result.returncode, 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}")
        return result.stdout

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="linnet_package_test."))
        self.addCleanup(shutil.rmtree, self.dir)
        self.pages = sorted((SOURCE / "docs" / "attention").glob("*.md"))

    @classmethod
    def setUpClass(cls):
        cls.prefix = pathlib.Path(tempfile.mkdtemp(prefix="linnet_package_test."))
        cls.addClassCleanup(shutil.rmtree, cls.prefix)
        subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix, "--component", "library"], check=True,
                       capture_output=True)

    def headers(self):
        """Returns {folder: names of its headers}."""
        found = {}
        for path in sorted((self.prefix / "include" / "linnet").rglob("*.h")):
            name = path.relative_to(self.prefix / "include")
            found.setdefault(name.parts[1] if len(name.parts) > 2 else "", []).append(str(name))
        return found

    def test_every_header_stands_alone(self):
        headers = self.headers()
        self.assertEqual(set(headers), {"", "base", "io", "kernels", "model", "runtime", "tasks",
                                        *WITH_TORCH})
        for name in ("base/function_ref", "kernels/matmul", "nn/mixer", "train/trainer"):
            self.assertIn(f"linnet/{name}.h", headers[name.split("/")[0]])
        for name in ("kernels/linear_ref", "kernels/linear-inl", "io/test_util"):
            self.assertNotIn(f"linnet/{name}.h", headers[name.split("/")[0]])
        cache = (BUILD / "CMakeCache.txt").read_text()
        compiler = re.search(r"^CMAKE_CXX_COMPILER:.*?=(.*)$", cache, re.MULTILINE).group(1)
        for folder, names in headers.items():
            if folder in WITH_TORCH:  # slow to parse: test_a_program_outside includes them all
                continue
            for name in names:
                self.run_ok(compiler, "-std=c++20", "-Wall", "-Wextra", "-fsyntax-only", "-I", self.prefix / "include",
                            "-include", name, "-x", "c++", "/dev/null")

    def test_the_examples(self):
        build = self.dir / "examples"
        self.run_ok("cmake", "-S", SOURCE / "examples", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.run_ok("cmake", "--build", build)
        model = SOURCE / "models" / "digits.safetensors"
        drawn = self.run_ok(build / "draw", model, 3).splitlines()
        self.assertEqual([len(line) for line in drawn], [28] * 56)
        self.assertEqual(drawn[:14], drawn[28:42])  # the same upper half
        said = self.run_ok(build / "draw_c", model, 3)
        self.assertIn("after 3 tokens", said)
        self.assertEqual(said, self.run_ok(build / "draw_c_static", model, 3))
        for name in ("draw", "draw_c"):
            done = subprocess.run([build / name, "/nowhere"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("/nowhere", done.stderr)

    def build_page(self, page, file):
        """Builds the first cpp block of a page with its cmake block; returns the program."""
        folder = self.dir / "page"
        folder.mkdir()
        lines = blocks(page, "cpp")[0].splitlines()
        for old, new in file.items():
            lines = [line.replace(old, str(new)) for line in lines]
        main = [line for line in lines if line.startswith("#include")] + ["int main() {"] + \
            [line for line in lines if not line.startswith("#include")] + ["}"]
        (folder / "main.cc").write_text("\n".join(main))
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(page LANGUAGES CXX)\nadd_executable(program main.cc)\n" +
            blocks(page, "cmake")[0])
        self.run_ok("cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.run_ok("cmake", "--build", folder / "build")
        return folder / "build" / "program"

    def test_the_page_on_embedding(self):
        state = self.dir / "half.state"
        program = self.build_page(SOURCE / "docs" / "embedding.md", {"/tmp/half.state": state})
        self.run_ok(program, cwd=SOURCE)
        self.assertTrue(state.exists())

    def test_the_page_on_speech(self):
        sound = self.dir / "sound.wav"
        with wave.open(str(sound), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16000)
            out.writeframes(bytes(random.Random(1).choices(range(256), k=32000)))
        program = self.build_page(SOURCE / "docs" / "speech.md", {"yes.flac": sound})
        self.run_ok(program, cwd=SOURCE)

    def test_the_library_for_c(self):
        library = next(self.prefix.rglob("liblinnet.so"))
        self.assertLess(library.stat().st_size, 5e6)
        self.assertNotIn("torch", self.run_ok("ldd", library))

    def find(self, arguments, *options):
        """Runs find_package(linnet ARGUMENTS); returns (linnet found, nn found, reason if not found)."""
        source = self.dir / "find"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(find LANGUAGES CXX)\n"
            f"find_package(linnet {arguments})\n"
            'message("=${linnet_FOUND}=${linnet_nn_FOUND}=${linnet_NOT_FOUND_MESSAGE}=")\n')
        result = subprocess.run(["cmake", "-S", source, "-B", source / "build", "-G", "Ninja",
                                 f"-DCMAKE_PREFIX_PATH={self.prefix}", *options], capture_output=True, text=True,
                                timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        found, nn, why = re.search(r"^=(\w*)=(\w*)=(.*)=$", result.stderr, re.MULTILINE).groups()
        return found in ("1", "TRUE"), nn == "TRUE", why

    def test_components(self):
        no_torch = "-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON"
        for arguments, options, expected, reason in (
                ("COMPONENTS runtime io", [no_torch], (True, False), ""),
                ("COMPONENTS train", [], (True, True), ""),
                ("OPTIONAL_COMPONENTS nn", [no_torch], (True, False), ""),
                ("COMPONENTS nn", [no_torch], (False, False), "libtorch"),
                ("COMPONENTS runtime trian", [], (False, False), "no component 'trian'. There are base capi"),
                ("OPTIONAL_COMPONENTS trian", [], (True, False), "")):
            found, nn, why = self.find(arguments, *options)
            self.assertEqual((found, nn), expected, arguments)
            self.assertIn(reason, why, arguments)
        # Without pkg-config an optional find_package goes on without linnet.
        self.assertFalse(self.find("QUIET", "-DPKG_CONFIG_EXECUTABLE=/bin/false")[0])

    def test_a_program_outside(self):
        prefix, build, pages = self.prefix, self.dir / "build", self.dir / "pages.cc"
        headers = [name for folder in WITH_TORCH for name in self.headers()[folder]]
        pages.write_text("".join(f"#include \"{name}\"\n" for name in headers) + program(self.pages))
        self.run_ok("cmake", "-S", SOURCE / "tests" / "package", "-B", build, "-G", "Ninja",
                    "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DPAGES={pages}")
        self.run_ok("cmake", "--build", build)
        self.assertIn("ok", self.run_ok(build / "outside", self.dir / "model.safetensors"))

    def test_the_pages_commands(self):
        path = f"{BUILD / 'bin'}:{os.environ['PATH']}"
        for page in self.pages:
            for block in blocks(page, "sh"):
                self.run_ok("bash", "-ec", block, cwd=self.dir, env={**os.environ, "PATH": path})


if __name__ == "__main__":
    SOURCE = pathlib.Path(sys.argv.pop()).resolve()
    BUILD = pathlib.Path(sys.argv.pop()).resolve()
    unittest.main()
