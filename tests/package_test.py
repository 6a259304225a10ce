"""Installs linnet into a folder, and builds a program against it as a stranger would: an attention kind
of its own, and the examples of docs/attention, whose commands are run as well. Arguments: the build folder, the
source folder."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def program(pages):
    """One file with all the pages' examples, each a function."""
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

    def test_a_program_outside(self):
        prefix, build, pages = self.dir / "prefix", self.dir / "build", self.dir / "pages.cc"
        self.run_ok("cmake", "--install", BUILD, "--prefix", prefix, "--component", "library")
        pages.write_text(program(self.pages))
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
