#!/usr/bin/env python3
"""Runs scripts/long-functions over the tree, and tests its parsers of C++, JavaScript and Python.

    tests/long_functions_test.py

Fails if a function or a test file exceeds the limits of HACKING.md; the message lists them.
"""

import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile
import textwrap
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent


def load_script():
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader("long_functions", str(SOURCE / "scripts/long-functions"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


script = load_script()


class ThisTree(unittest.TestCase):
    def test_limits(self):
        files = script.sources(SOURCE)
        functions = script.functions_of(files, SOURCE)
        self.assertGreater(len(functions), 1000)
        found = script.faults(functions, files, SOURCE)
        self.assertFalse(found, "\n" + "\n".join(found))


class Cxx(unittest.TestCase):
    def read(self, text):
        """Returns {name: number of lines} of the functions in `text`."""
        found = script.cxx_functions(textwrap.dedent(text))
        return {name: last - first + 1 for first, last, name in found}

    def test_functions_and_methods(self):
        self.assertEqual(self.read("""\
            namespace linnet {
            namespace {
            int Twice(int x) { return 2 * x; }
            }  // namespace
            class Model final : public Base<int> {
             public:
              ~Model() override {
                Close();
              }
              int size() const noexcept {
                return 1;

              }
              void Declared(int);
             private:
              struct Row {
                bool operator<(const Row& o) const {
                  return true;
                }
              } row_;
            };
            static std::vector<int>
            Model::Rows(const std::map<int, int>& m = {}) const {
            }
            }  // namespace linnet
            """), {"Twice": 1, "~Model": 3, "size": 4, "operator<": 3, "Model::Rows": 3})

    def test_constructors_with_initializers(self):
        self.assertEqual(self.read("""\
            Model::Model(int size)
                : Base(size), a_{size}, list_{{1, 2}, 3}, map_<int>{} {
              Run();
            }
            Row::Row() : x{1} {}
            """), {"Model::Model": 4, "Row::Row": 1})

    def test_operators(self):
        self.assertEqual(self.read("""\
            struct A {
              A& operator=(A&& other) noexcept {
                return *this;
              }
              void operator()(int x) const {}
              explicit operator bool() const {
                return true; }
              bool operator==(const A&) const = default;
              T* operator->() { return x; }
            };
            void After() {}
            """), {"operator=": 3, "operator()": 1, "operatorbool": 2, "operator->": 1, "After": 1})

    def test_templates(self):
        self.assertEqual(self.read("""\
            template <typename T, size_t kN = 3, bool kB = (kN > 2), typename = std::vector<std::map<int, T>>>
              requires(kN > 1)
            HWY_INLINE HWY_ATTR auto Sum(const T* x, Op op = [](int a) { return a; }) -> std::array<T, 2> {
              return {};
            }
            template <>
            struct Row<3> {
              int x[2] = {1, 2};
            };
            """), {"Sum": 5})

    def test_lambdas_are_part_of_their_function(self):
        self.assertEqual(self.read("""\
            void Outer() {
              const auto inner = [&](int x) HWY_ATTR {
                if (x) { return 1; }
                struct Local { void F() {} };
              };
            }
            const auto kOne = [] {
              return 1;
            };
            const Row kRows[] = {
                {"a", {1, 2}, [](int x) {
                   return x; }},
            };
            """), {"Outer": 6, "kOne": 3, "kRows (lambda)": 2})

    def test_macros(self):
        self.assertEqual(self.read("""\
            HWY_BEFORE_NAMESPACE();
            namespace linnet {
            namespace HWY_NAMESPACE {
            HWY_ATTR HWY_NOINLINE void Kernel(float* HWY_RESTRICT x) {
            }
            }  // namespace HWY_NAMESPACE
            }
            HWY_AFTER_NAMESPACE();
            #if HWY_ONCE
            HWY_EXPORT(Kernel);
            #define LINNET_ROW(T) \\
              void Row##T() {     \\
              }
            extern "C" {
            __global__ void __launch_bounds__(128) Device(int x) {
            }
            }
            #endif
            TEST(Suite, Case) {
            }
            TORCH_MODULE(Layer);
            """), {"Kernel": 2, "Device": 2, "Suite.Case": 2})

    def test_branches_of_the_preprocessor(self):
        self.assertEqual(self.read("""\
            #if A
            void F(int x) {
            #else
            void F() {
            #endif
            }
            #ifdef B
            void G() {}
            #else
            void H() {}
            #endif
            """), {"F": 5, "G": 1, "H": 1})

    def test_literals_and_comments(self):
        self.assertEqual(self.read("""\
            const char kText[] = R"(
            } # if
            )";
            void F() {  // {
              char c = '{'; auto s = "\\"{"; int n = 1'000;
              /* { */
            }
            """), {"F": 4})

    def test_function_try_block(self):
        self.assertEqual(self.read("""\
            int main() try {
              return 0;
            } catch (const Error& error) {
            } catch (...) {
            }
            """), {"main": 5})

    def test_unmatched_braces(self):
        for text in ("void F() {", "}", "void F() { ) }"):
            with self.assertRaises(script.ParseError):
                self.read(text)


class OtherLanguages(unittest.TestCase):
    def test_javascript(self):
        found = script.js_functions(textwrap.dedent("""\
            'use strict';
            const say = (...parts) => {
              at('say').textContent = `${parts.map((p) => { return `{${p}`; })} }`.replace(/[{/]\\//g, '{');
            };
            async function ask(x) {
              if (x) { return a / b / c; }
            }
            const shell = {
              begin(words) {
                for (const word of words) {}
              },
            };
            """))
        self.assertEqual(found, [(2, 4, "say"), (5, 7, "ask"), (9, 11, "begin")])

    def test_python(self):
        found = script.python_functions(textwrap.dedent("""\
            @decorated
            def f():
                def g():
                    pass
            class A:
                def m(self):
                    pass
            """))
        self.assertEqual(found, [(1, 4, "f"), (6, 7, "A.m")])


class Limits(unittest.TestCase):
    def faults(self, sizes):
        """Returns the faults of a tree with these files. sizes: {path: number of lines of its only function}."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, lines in sizes.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text("void F() {\n" + "\n" * (lines - 2) + "}\n")
            files = script.sources(root)
            self.assertEqual(len(files), len(sizes))
            return script.faults(script.functions_of(files, root), files, root)

    def test_functions(self):
        self.assertEqual(self.faults({"linnet/io/a.cc": 100}), [])
        self.assertEqual(self.faults({"linnet/io/a.cc": 101}), ["linnet/io/a.cc:1: F has 101 lines, more than 100"])
        self.assertEqual(self.faults({f"linnet/io/{i}.cc": 71 for i in range(10)}), [])
        self.assertEqual(len(self.faults({f"linnet/io/{i}.cc": 71 for i in range(11)})), 1)

    def test_test_files(self):
        self.assertEqual(self.faults({"linnet/io/a_test.cc": 600, "linnet/io/test_util.h": 600}), [])
        self.assertEqual(len(self.faults({"linnet/io/a_test.cc": 601, "tests/a.cc": 601})), 2)


if __name__ == "__main__":
    unittest.main()
