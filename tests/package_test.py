"""Installs linnet into a folder and builds programs outside the source tree against it: one with a custom attention
kind, and the examples of docs/attention. Also runs the commands of these pages. Arguments: the build folder, the source
folder."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import train_forks


COMPONENTS = ("library", "static", "nn")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def program(pages):
    """A source file with the C++ examples of all pages, one function per example."""
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
        for component in COMPONENTS:
            subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix, "--component", component], check=True,
                           capture_output=True)

    def headers(self, prefix=None):
        """Returns {folder: names of its installed headers}."""
        found = {}
        root = (prefix or self.prefix) / "include"
        for path in sorted((root / "linnet").rglob("*.h")):
            name = path.relative_to(root)
            found.setdefault(name.parts[1] if len(name.parts) > 2 else "", []).append(str(name))
        return found

    def compiler(self):
        cache = (BUILD / "CMakeCache.txt").read_text()
        return re.search(r"^CMAKE_CXX_COMPILER:.*?=(.*)$", cache, re.MULTILINE).group(1)

    def test_every_public_header_stands_alone(self):
        headers = self.headers()
        self.assertLessEqual({"nn", "train", "ops"}, set(headers))
        for name in ("kernels/linear_ref", "kernels/linear-inl", "io/test_util", "runtime/state_data"):
            self.assertNotIn(f"linnet/{name}.h", headers.get(name.split("/")[0], []))
        for name in headers[""]:
            self.run_ok(self.compiler(), "-std=c++20", "-Wall", "-Wextra", "-fsyntax-only", "-I",
                        self.prefix / "include", "-include", name, "-x", "c++", "/dev/null")

    def test_the_library_alone(self):
        prefix = self.dir / "alone"
        self.run_ok("cmake", "--install", BUILD, "--prefix", prefix, "--component", "library")
        public = {f"linnet/{path.name}" for path in (SOURCE / "include" / "linnet").glob("*.h")}
        self.assertEqual(self.headers(prefix), {"": sorted(public | {"linnet/version.h"})})
        self.assertEqual(list(prefix.rglob("*.a")), [])
        library = next(prefix.rglob("liblinnet.so"))
        # The public headers define no macros, except LINNET_... and those of the standard headers that they include.
        source = self.dir / "macros.cc"
        includes = re.findall(r"^#include <.*>$", "".join((prefix / "include" / name).read_text() for name in public),
                              re.MULTILINE)
        macros = []
        for text in ("".join(f"{line}\n" for line in includes if "linnet" not in line),
                     "#include <linnet/runtime.h>\n#include <linnet/linnet.h>\n"):
            source.write_text(text)
            macros.append(set(re.findall(r"^#define (\w+)", self.run_ok(
                self.compiler(), "-std=c++20", "-dM", "-E", "-I", prefix / "include", source), re.MULTILINE)))
        self.assertEqual({name for name in macros[1] - macros[0] if not name.startswith("LINNET_")}, set())
        # The examples in C and in C++ build with pkg-config alone, without CMake.
        found = {**os.environ, "PKG_CONFIG_PATH": str(next(prefix.rglob("linnet.pc")).parent)}
        flags = self.run_ok("pkg-config", "--cflags", "--libs", "linnet", env=found).split()
        self.assertEqual(self.run_ok("pkg-config", "--modversion", "linnet", env=found).strip(), VERSION)
        for example, compiler in (("draw.c", ["cc", "-std=c99"]), ("draw.cc", [self.compiler(), "-std=c++20"])):
            program = self.dir / f"program_{example}"
            self.run_ok(*compiler, SOURCE / "examples" / example, "-o", program, *flags,
                        f"-Wl,-rpath,{library.parent}")
            self.run_ok(program, SOURCE / "models" / "digits.safetensors", 3)

    def test_errors_are_caught_by_their_type(self):
        source, program = self.dir / "errors.cc", self.dir / "errors"
        source.write_text('''#include <linnet/runtime.h>
int main() {
  try {
    linnet::Model::Open("/nowhere");
  } catch (const linnet::InputError& error) {
    return std::string(error.what()).find("/nowhere") == std::string::npos;
  }
  return 2;
}
''')
        library = next(self.prefix.rglob("liblinnet.so"))
        self.run_ok(self.compiler(), "-std=c++20", source, "-I", self.prefix / "include", "-o", program, library,
                    f"-Wl,-rpath,{library.parent}")
        self.run_ok(program)

    def examples_of_headers(self):
        """The indented examples in the opening comments of the public headers: {header: code}."""
        found = {}
        for path in sorted((SOURCE / "include" / "linnet").glob("*.h")):
            opening = path.read_text().split("#ifndef")[0]
            code = "\n".join(re.findall(r"^//   (.*)$", opening, re.MULTILINE))
            if code:
                found[path.name] = code
        return found

    def test_the_examples_of_headers(self):
        known = """
#include <linnet/runtime.h>
#include <cstdio>
#include <iostream>
template <class T> T Made() { return T(); }
"""
        given = {  # declarations that the examples omit
            "error.h": "std::string path;", "state.h": "auto model = linnet::Model::Open(\"\"); linnet::Engine "
            "engine(model); std::vector<int32_t> prompt;", "scheduler.h": "linnet::Engine engine(linnet::Model::Open"
            "(\"\")); std::vector<int32_t> prompt; auto Draw = [](std::span<const float>) { return 1; };",
            "sampling.h": "uint64_t seed = 1, sequence = 0; std::vector<float> logits;",
            "rng.h": "uint64_t seed = 1, sequence_id = 0, k = 0;", "text.h": "linnet::Engine engine(linnet::Model::Open"
            "(\"\"));", "history.h": "linnet::Engine engine(linnet::Model::Open(\"\")); std::vector<int32_t> prompt;",
            "couplet.h": "linnet::Engine engine(linnet::Model::Open(\"\"));", "vocabulary.h":
            "std::string corpus; linnet::ModelSpec spec;", "speech.h": "std::vector<float> samples;",
            "grammar.h": "linnet::TextWriter& writer = *Made<linnet::TextWriter*>(); auto reader = [](std::string_view) "
            "{ return true; }; const auto vocabulary = linnet::Vocabulary::Bytes(); std::vector<float> logits; "
            "linnet::ChoiceOptions options; linnet::Philox rng(1);"}
        examples = self.examples_of_headers()
        self.assertGreater(len(examples), 10)
        source = self.dir / "examples.cc"
        functions = []
        for name, code in examples.items():
            body = "\n".join(line for line in code.splitlines() if not line.startswith("#include"))
            body = body.replace("...", ";")  # "..." stands for the reader's own statements
            functions.append(f"void Example{len(functions)}() {{\n{given.get(name, '')}\n{{\n#line 1 \"{name}\"\n{body}\n}}\n}}\n")
        source.write_text(f"{known}using namespace linnet;\n" + "".join(functions))
        self.run_ok(self.compiler(), "-std=c++20", "-fsyntax-only", "-I", self.prefix / "include", source)

    def test_the_examples(self):
        build = self.dir / "examples"
        self.run_ok("cmake", "-S", SOURCE / "examples", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.run_ok("cmake", "--build", build)
        model = SOURCE / "models" / "digits.safetensors"
        drawn = self.run_ok(build / "draw", model, 3).splitlines()
        self.assertEqual([len(line) for line in drawn], [28] * 56)
        self.assertEqual(drawn[:14], drawn[28:42])  # both digits have the same upper half
        said = self.run_ok(build / "draw_c", model, 3)
        self.assertIn("after 3 tokens", said)
        self.assertEqual(said, self.run_ok(build / "draw_c_static", model, 3))
        for name in ("draw", "draw_c"):
            done = subprocess.run([build / name, "/nowhere"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("/nowhere", done.stderr)

    def build_page(self, page, file):
        """Builds a page's first cpp block with its first cmake block; returns the program's path."""
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
        program = self.build_page(SOURCE / "docs" / "speech.md", {})
        self.run_ok(program, cwd=SOURCE)

    def test_the_library_is_small_and_has_few_dependencies(self):
        library = next(self.prefix.rglob("liblinnet.so"))
        with_cuda = "\nLINNET_NVCC:FILEPATH=/" in (BUILD / "CMakeCache.txt").read_text()
        self.assertLess(library.stat().st_size, 20e6 if with_cuda else 5e6)
        needed = re.findall(r"\(NEEDED\).*\[(\w+)", self.run_ok("readelf", "-d", library))
        self.assertLessEqual(set(needed), {"libz", "libhwy", "libpcre2", "libutf8proc", "libstdc", "libm",
                                           "libgcc_s", "libc", "ld"})

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
                ("0.2", [no_torch, "-DPKG_CONFIG_EXECUTABLE=/bin/false"], (True, False), ""),
                ("0.1", [], (False, False), ""),
                ("COMPONENTS static", [no_torch], (True, False), ""),
                ("COMPONENTS nn", [], (True, True), ""),
                ("OPTIONAL_COMPONENTS nn", [no_torch], (True, False), ""),
                ("COMPONENTS nn", [no_torch], (False, False), "libtorch"),
                ("COMPONENTS static", ["-DPKG_CONFIG_EXECUTABLE=/bin/false"], (False, False),
                 "pkg-config does not know"),
                ("COMPONENTS nnn", [], (False, False), "no component 'nnn'; there are linnet, static and nn"),
                ("OPTIONAL_COMPONENTS nnn", [], (True, False), "")):
            found, nn, why = self.find(arguments, *options)
            self.assertEqual((found, nn), expected, arguments)
            self.assertIn(reason, why, arguments)

    def test_a_program_outside(self):
        """Builds the program with every installed header that is not public. All sources form one file (a unity build),
        since parsing libtorch's headers takes most of the time."""
        prefix, build, pages = self.prefix, self.dir / "build", self.dir / "pages.cc"
        headers = [name for folder, names in sorted(self.headers().items()) if folder for name in names]
        pages.write_text("".join(f"#include \"{name}\"\n" for name in headers) + program(self.pages))
        self.run_ok("cmake", "-S", SOURCE / "tests" / "package", "-B", build, "-G", "Ninja",
                    "-DCMAKE_UNITY_BUILD=ON", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DPAGES={pages}")
        self.run_ok("cmake", "--build", build)
        self.assertIn("ok", self.run_ok(build / "outside", self.dir / "model.safetensors"))

    def test_the_pages_commands(self):
        path = f"{BUILD / 'bin'}:{os.environ['PATH']}"
        lines = [line for page in self.pages for block in blocks(page, "sh")
                 for line in block.replace("\\\n", "").splitlines()]
        self.assertGreater(len(lines), 15)
        for line in lines:
            words = shlex.split(line)
            if words[:2] == ["linnet", "train"] and "|" not in words:
                done = train_forks.run(BUILD / "bin", *words[1:], cwd=self.dir)
                self.assertEqual(done.returncode, 0, f"{line}\n{done.stderr}")
            else:
                self.run_ok("bash", "-ec", line, cwd=self.dir, env={**os.environ, "PATH": path})


if __name__ == "__main__":
    SOURCE = pathlib.Path(sys.argv.pop()).resolve()
    BUILD = pathlib.Path(sys.argv.pop()).resolve()
    VERSION = re.search(r"VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text().split("project(")[1]).group(1)
    unittest.main()
