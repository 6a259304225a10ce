"""Compares the functions of linnet.h with the symbols of the library, the calls in the C tests and the page docs/c.md.
Also compiles and runs the page's and the header's examples. Arguments: the library, the C compiler, the C++ compiler,
the source folder."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest


def declared():
    return set(re.findall(r"^LINNET_API [^;(]*?(linnet_\w+)\(", HEADER.read_text(), re.MULTILINE))


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


class ApiTest(unittest.TestCase):
    def run_ok(self, *command, **options):
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, **options)
        self.assertEqual(result.returncode, 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}")
        return result.stdout

    def test_the_header_is_plain_c_and_cpp(self):
        strict = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-I", SOURCE / "include"]
        self.run_ok(CC, "-std=c99", *strict, "-x", "c", HEADER)
        self.run_ok(CXX, "-std=c++11", *strict, "-x", "c++", HEADER)

    def test_exports(self):
        self.assertGreater(len(declared()), 80)
        lines = self.run_ok("nm", "-D", "--defined-only", LIBRARY).splitlines()
        symbols = {line.split()[-1].split("@")[0] for line in lines}
        self.assertEqual({symbol for symbol in symbols if not symbol.startswith("_Z")}, declared())
        names = self.run_ok("c++filt", *sorted(symbols - declared())).splitlines()
        names = [re.sub(r"^(typeinfo( name)?|vtable) for ", "", name) for name in names]
        self.assertEqual([name for name in names if not name.startswith("linnet::")], [])
        self.assertEqual([name for name in names if re.search(r"::(Impl|Inside|Packed)::", name)], [])

    def test_every_function_is_tested(self):
        calls = set()
        for file in (SOURCE / "tests" / "capi").glob("*_test.c"):
            calls |= set(re.findall(r"\b(linnet_\w+)\(", file.read_text()))
        self.assertEqual(declared() - calls, set())

    def test_the_page_lists_every_function_with_its_arguments(self):
        header, rows = HEADER.read_text(), {}
        for row in re.findall(r"^\| `(linnet_\w+)\((.*?)\)` \|", PAGE.read_text(), re.MULTILINE):
            self.assertNotIn(row[0], rows)
            rows[row[0]] = row[1]
        self.assertEqual(set(rows), declared())
        for name, arguments in rows.items():
            parameters = re.search(rf"^LINNET_API [^;(]*?\b{name}\(([^)]*)\)", header, re.MULTILINE).group(1)
            names = [re.search(r"\w+$", one.strip()).group() for one in parameters.split(",")]
            self.assertEqual(arguments, "" if names == ["void"] else ", ".join(names), name)

    def test_the_page_lists_every_status(self):
        enum = re.search(r"typedef enum linnet_status \{(.*?)\}", HEADER.read_text(), re.DOTALL).group(1)
        values = set(re.findall(r"(LINNET_\w+ = \d+)", enum))
        self.assertEqual(set("".join(row).replace("`", "") for row in re.findall(
            r"^\| (`LINNET_\w+`)( = \d+) \|", PAGE.read_text(), re.MULTILINE)), values)

    def build_and_run(self, code):
        with tempfile.TemporaryDirectory(prefix="linnet_api_test.") as folder:
            source, program = pathlib.Path(folder) / "main.c", pathlib.Path(folder) / "program"
            source.write_text(code)
            self.run_ok(CC, "-std=c99", "-Wall", "-Wextra", "-I", SOURCE / "include", source, "-o", program, LIBRARY,
                        f"-Wl,-rpath,{LIBRARY.parent}")
            return self.run_ok(program, cwd=SOURCE)

    def test_the_examples_of_the_page(self):
        pieces = blocks(PAGE, "c")
        self.assertGreater(len(pieces), 6)
        includes = "".join(f"#include <{name}.h>\n" for name in ("linnet/linnet", "stdio", "stdlib", "string"))
        for i, code in enumerate(pieces):
            if "int main" not in code:
                status = "0" if "linnet_last_error" in code else "linnet_last_status()"
                code = f"{includes}int main(void) {{\n{code}\nreturn {status};\n}}\n"
            with self.subTest(block=i):
                self.build_and_run(code)

    def test_the_example_of_the_header(self):
        comment = HEADER.read_text().partition("*/")[0]
        lines = [line[5:] for line in comment.splitlines() if line.startswith(" *   ")]
        self.assertIn("int main(void) {", lines)
        lines[0] = lines[0].split(">")[0] + ">"  # the rest of the line is about linking
        self.build_and_run("\n".join(lines) + "\n")


if __name__ == "__main__":
    SOURCE = pathlib.Path(sys.argv.pop()).resolve()
    CXX, CC = sys.argv.pop(), sys.argv.pop()
    LIBRARY = pathlib.Path(sys.argv.pop()).resolve()
    HEADER = SOURCE / "include" / "linnet" / "linnet.h"
    PAGE = SOURCE / "docs" / "c.md"
    unittest.main()
