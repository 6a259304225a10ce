#!/usr/bin/env python3
"""End-to-end tests of the pages that linnet reproduce writes, from synthetic records, tiny measurements, docs/results.

    tests/reproduce_test.py BIN_DIR [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import unittest
import xml.etree.ElementTree

import reproduce_util
import train_forks
from reproduce_util import ALL, Case, has, main, records

FILES = ["figure1.md", "figure1.json", "figure1.png", "figure1.svg", "figure1-dark.png", "figure1-dark.svg"]
ROOT = pathlib.Path(__file__).resolve().parent.parent


class Figure1(Case):
    def setUp(self):
        super().setUp()
        self.write("bench.json", records())

    def reproduce_ok(self, *arguments):
        done = self.reproduce(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
        return done.stdout

    def files(self):
        return {path: path.read_bytes() for path in self.dir.rglob("*") if path.is_file()}

    def refuses(self, arguments, *fragments, code=2, **how):
        before = self.files()
        done = self.reproduce(*arguments, **how)
        said = f"{arguments}: exit {done.returncode}, stdout {done.stdout!r}, stderr {done.stderr!r}"
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (code, "", 1), said)
        self.assertTrue(done.stderr.startswith("linnet"), said)
        for fragment in fragments:
            self.assertIn(str(fragment), done.stderr, said)
        self.assertEqual(self.files(), before, said)

    def test_help(self):
        self.assertIn("figure1", self.reproduce_ok("--help"))
        self.assertIn("Examples:\n  linnet reproduce figure1", self.reproduce_ok("figure1", "--help"))
        self.assertRegex(self.reproduce_ok("--version"), r"^linnet \d+\.\d+\.\d+\n$")

    def check_pictures(self, folder):
        for name in FILES[2:]:
            data = (folder / name).read_bytes()
            if name.endswith(".svg"):
                self.assertEqual(xml.etree.ElementTree.fromstring(data).get("width"), "1120px")
            else:
                self.assertEqual(struct.unpack(">II", data[16:24]), (2240, 880))
        self.assertNotEqual((folder / FILES[3]).read_bytes(), (folder / FILES[5]).read_bytes())

    def test_from_records(self):
        self.assertEqual(self.reproduce_ok("figure1", "--from", "bench.json", "--out", "out"),
                         "".join(f"wrote out/{name}\n" for name in FILES))
        self.assertEqual(sorted(os.listdir(self.dir / "out")), sorted(FILES))
        self.check_pictures(self.dir / "out")
        self.assertEqual(json.loads(self.read("out/figure1.json")), records())
        page = self.read("out/figure1.md")
        for part in ("linnet reproduce figure1 --from", "A (machine), family 6, 2 threads", "2026-11-21",
                     "| N | linear | softmax | softmax-plain | lsh-1 | lsh-4 |",
                     "| 512 | 1.02 | 0.518 | 1.57 | 3.07 | 10.2 |", "| 8,192 | 16.4 | 71.2 | – | 49.2 | 164 |",
                     "| exponent of N | 1.00 | 1.94 | 2.00 | 1.00 | 1.00 |",
                     "`softmax`: time N^1.94 (agrees), memory N^1.00 (differs)",
                     "faster in 20 of 22 comparisons",
                     "`softmax` at 2 of 6 lengths (where it takes 0.506 to 0.762 times as long as linear)",
                     "`lsh-1` 98.3 ms (N = 16,384), `lsh-4` 328 ms (N = 16,384)",
                     "`softmax-plain` 4,096 (at 8,192: a sample needs about 9 GB)"):
            self.assertIn(part, page)
        # The record that it wrote gives the same page.
        first = self.files()
        said = json.loads(self.reproduce_ok("figure1", "--from", "out/figure1.json", "--out", "out", "--json"))
        self.assertEqual(said["out"], [f"out/{name}" for name in FILES])
        self.assertEqual(self.files(), first)

    def test_little_to_show(self):
        self.write("few.json", records(["linear"], {"linear": 512}))
        self.reproduce_ok("figure1", "--from", "few.json")
        self.assertIn("not fitted", self.read("figure1.md"))
        self.check_pictures(self.dir)

    def test_what_a_file_holds_stays_harmless(self):
        odd = records(["linear"])
        odd[-1]["machine"] = "<script>|`\n"
        self.write("odd.json", odd)
        self.reproduce_ok("figure1", "--from", "odd.json")
        self.assertIn("?script????, 2 threads", self.read("figure1.md"))

    def test_bad_input(self):
        def changed(**fields):
            self.write("bad.json", [{**records()[0], **fields}, *records()[1:]])
            return ["figure1", "--from", "bad.json"]

        for fields in (dict(value=0), dict(value=-1), dict(value="much"), dict(value=None), dict(N=1e300),
                       dict(name="attention"), dict(name="step"), dict(name="attention/linear/mood"),
                       dict(checked=False), dict(heads="8"), dict(ratio=-1), dict(N=[1])):
            self.refuses(changed(**fields), "bad.json", "give the figure1.json that 'linnet reproduce figure1' wrote")
        memoryless = [record for record in records() if not record["name"].endswith("/memory")]
        for text, fragment in (("{", "valid JSON"), ("{}", "field"), ("[]", "no measurement"), ("[1]", "field"),
                               (json.dumps(memoryless), "no memory"), ("[" * 100 + "]" * 100, "deep")):
            self.write("bad.json", text)
            self.refuses(["figure1", "--from", "bad.json"], "bad.json", fragment)
        (self.dir / "out/figure1.svg").mkdir()
        for arguments, fragment in (([], "figure1"), (["figure99"], "figure9"), (["figure1", "--from", "no"], "no"),
                                    (["figure1", "--what"], "--what"), (["figure1", "--max-n", "1"], "--max-n"),
                                    (["figure1", "--from", "bench.json", "--max-n", "512"], "--max-n"),
                                    (["figure1", "--from", "bench.json", "--out", "bench.json/at/all"],
                                     "bench.json/at/all"),
                                    (["figure1", "--from", "bench.json", "--out", "out"], "figure1.svg")):
            self.refuses(arguments, fragment)

    def test_without_the_programs_beside_it(self):
        folder = self.dir / "bin"
        folder.mkdir()
        shutil.copy(reproduce_util.BIN / "linnet", folder)
        self.refuses(["figure1"], folder / "linnet-reproduce", "scripts/build", program=folder / "linnet",
                     env={"PATH": "/nowhere"})
        shutil.copy(reproduce_util.BIN / "linnet-reproduce", folder)
        before = self.files()
        done = self.reproduce("figure1", program=folder / "linnet", env={"PATH": "/nowhere"})  # no linnet-bench-torch
        self.assertEqual((done.returncode, self.files()), (2, before))
        self.assertIn("linnet-bench-torch", done.stderr)

    def test_measured(self):
        if not has("linnet-bench-torch"):
            self.skipTest("no linnet-bench-torch here")
        done = self.reproduce("figure1", "--max-n", "512", "--methods", "linear,softmax", "--tokens", "2048",
                              "--seconds", "0", "--threads", "1", "--out", "out")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = self.read("out/figure1.md")
        self.assertIn("linnet reproduce figure1 --max-n 512 --methods linear,softmax --tokens 2048", page)
        self.assertRegex(page, r"\| 512 \| [\d.,]+ \| [\d.,]+ \|")
        self.check_pictures(self.dir / "out")
        before = self.files()
        done = self.reproduce("figure1", "--methods", "magic", "--out", "out")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("magic", done.stderr)
        self.assertEqual(self.files(), before)


class Figure2(Case):
    COMMAND = ("figure2", "--out", "out", "--work", "work")

    def test_trains_goes_on_and_writes(self):
        if not has("linnet-train"):
            self.skipTest("no linnet-train")
        precision = "bf16" if reproduce_util.has_bf16_products() else "fp32"
        arguments = ("--max-length", 12, "--steps", 20, "--precision", precision, "--methods", "linear,lsh-4")
        done = self.reproduce(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(json.loads(done.stdout)["out"]), 6)
        result = json.loads(self.read("out/figure2.json"))
        self.assertEqual([run["method"] for run in result["runs"]], ["lsh-4", "linear"])
        for run in result["runs"]:
            self.assertEqual(run["curve"][-1][0], 20)
            self.assertLess(run["curve"][-1][1], 2.45)  # nats; 2.5 before the first update
        page = self.read("out/figure2.md")
        self.assertIn("linnet reproduce figure2 --steps 20 --max-length 12 "
                      f"--precision {precision} --methods linear,lsh-4\n", page)
        self.assertIn(f", {precision}, one seed.", page)
        again = self.reproduce(*arguments)  # all results exist already
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(json.loads(self.read("out/figure2.json"))["runs"], result["runs"])
        other = self.reproduce("--max-length", 12, "--steps", 20, "--seed", 2)
        self.assertEqual(other.returncode, 2)
        self.assertIn("--work", other.stderr)
        short = self.reproduce(*arguments, "--budget", "1")
        self.assertEqual(short.returncode, 2)
        self.assertIn("too little", short.stderr)
        whole = self.reproduce("--from", self.dir / "out" / "figure2.json")
        self.assertEqual(whole.returncode, 0, whole.stderr)

    def test_refuses_what_is_no_result(self):
        (self.dir / "out").rmdir()  # a refused record must not create this folder
        for broken in ({}, [], {"runs": []}, {"runs": [{"method": "linear"}]},
                       {"runs": [{"method": "linear", "curve": []}]}):
            self.refuses_record(broken)


class Recall(Case):
    COMMAND = ("recall", "--out", "out", "--work", "work")

    def test_a_page_with_a_picture(self):
        runs = [{"method": method, "seed": seed, "steps": 100, "seconds_an_update": 0.05, "parameters": 80_000,
                 "curve": [[50, 0.2, 3.0], [100, final, 1.0]]}
                for method, seed, final in (("elu", 1, 0.5), ("elu", 2, 0.7), ("kda", 1, 1.0))]
        self.write("in.json", {"machine": "A machine", "date": "2026-11-23", "pairs": 32, "threads": 1, "runs": runs})
        done = self.reproduce("--from", "in.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = self.read("out/recall.md")
        self.assertIn("| linear, elu | 60.0 | 50.0 to 70.0 | 100 | 80.0k |", page)
        self.assertNotIn("| retention |", page)  # no such run exists
        self.assertEqual(sorted(path.name for path in (self.dir / "out").iterdir()),
                         ["recall-dark.png", "recall-dark.svg", "recall.json", "recall.md", "recall.png", "recall.svg"])

    def test_trains(self):
        if not has("linnet-train"):
            self.skipTest("no linnet-train")
        done = self.reproduce("--pairs", 2, "--steps", 20, "--seeds", 1, "--methods", "kda,full")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(self.read("out/recall.json"))
        self.assertEqual([run["method"] for run in result["runs"]], ["full", "kda"])
        self.assertIn("linnet reproduce recall --steps 20 --pairs 2 --seeds 1 --methods kda,full\n",
                      self.read("out/recall.md"))
        self.assertTrue(all(run["steps"] == 20 and run["curve"] for run in result["runs"]))

    def test_every_method_trains(self):
        if not has("train_forks"):
            self.skipTest("no linnet-train")
        methods = json.loads((ROOT / "experiments/pages/recall.json").read_text())["methods"]
        self.assertEqual(len(methods), 8)
        for method in methods:
            done = train_forks.run(reproduce_util.BIN, "train", "recall", *method["flags"], "--steps", 1,
                                   "--out", self.dir / method["name"])
            self.assertEqual(done.returncode, 0, done.stderr)


class Batch(Case):
    """Records of a machine that reads 10 GB/s and computes 100 GFLOP/s, at position 400 of 800."""

    @staticmethod
    def record(method, batch, value, **fields):
        sizes = dict(layers=8, N=800, mean_position=400, weight_bytes=8e6, token_operations=2e6,
                     state_bytes=8e5 if method == "linear" else 4e6)
        rates = dict(read_gbs=10, product_gops=100, threads=2, precision="f32", isa="AVX2", checked=True)
        return dict(name="step", method=method, dataset="mnist", batch=batch, value=value, **sizes, **rates,
                    attention="full" if method == "stateful" else "causal-linear") | fields

    def reproduce_records(self, records, *arguments):
        self.write("some.json", {"machine": "a machine", "date": "2026-11-28", "records": records})
        return self.reproduce("batch", "--from", "some.json", *arguments)

    def test_bounds_and_factors(self):
        # A slow moment changes no bound. The last record has the largest batch, wherever it stands.
        records = [self.record("linear", 8, 50), self.record("linear", 1, 900, product_gops=50, read_gbs=5),
                   self.record("stateful", 1, 1500), self.record("stateful", 4, 700)]
        done = self.reproduce_records(records, "--out", "out")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        page = self.read("out/batch.md")
        sums = 8 * 8 * 32 * 33 * 4  # bytes
        for batch, value, read in ((8, 50, sums + 1e6), (1, 900, sums + 8e6)):
            self.assertRegex(page, rf"\n\| {batch} \| {value}(.0)? \| {read / 1e6:.2f} MB \| {read / 1e4:.0f} \| 20.0 \|")
        self.assertRegex(page, r"\| 1 \| 900 .* \| 1,500 \| 10.0 MB \| 1,000 \| 20.0 \| 1.67 \|\n")
        self.assertIn("| 4 | – | – | – | – | 700 | 4.00 MB | 400 | 20.0 | – |\n", page)
        self.assertIn(f"| MNIST, here | {sums / 1e4 + 100:.0f} | 20.0 | 50.0 | 400 | 20.0 | 700 | "
                      f"{400 / (sums / 1e4 + 100):.2f} | 14.0 |\n", page)
        gpu = 2 * sums / 346e3
        self.assertRegex(page, rf"\n\| MNIST, NVIDIA P40.* \| {gpu:.2f} \| 0.170 \| 8.93 \| 5.78 \| 0.170 \| 169 \| "
                               rf"{2e6 / 346e3 / gpu:.2f} \| 18.9 \|\n")
        self.assertNotIn("CIFAR-10, here", page)

    def test_rates_of_the_paper(self):
        """Those of table 4."""
        rates = {}
        for name in "batch", "generate":
            described = json.loads((ROOT / f"experiments/pages/{name}.json").read_text())
            rates[name] = {(s["set"], m["name"]): m["paper_rate"] if name == "batch" else m["paper"]["rate"]
                           for s in described["datasets"] for m in s["methods"] if m["name"] in ("linear", "stateful")}
        self.assertEqual(rates["batch"], rates["generate"])

    def test_records_that_are_refused(self):
        linear, stateful = self.record("linear", 1, 9), self.record("stateful", 1, 9)
        for records, says in (([linear], "lacks the times of stateful softmax for MNIST"),
                              ([linear | {"attention": "full"}, stateful], "record of linear with attention 'full'"),
                              ([linear, stateful | {"mean_position": 800}], "'mean_position'"),
                              ([linear | {"checked": False}, stateful], "checked"),
                              ([linear, stateful | {"read_gbs": 0}], "read_gbs")):
            done = self.reproduce_records(records)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
            self.assertIn(says, done.stderr)


class Polynomial(Case):
    def test_what_a_record_lacks(self):
        record = json.loads((ROOT / "docs/results/polynomial.json").read_text())
        for dim, method in ((16, "softmax"), (8, "polynomial2")):
            kept = [one for one in record["records"] if (one["dim"], one["method"]) != (dim, method)]
            self.write("few.json", record | {"records": kept})
            done = self.reproduce("polynomial", "--from", "few.json")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f"lacks the times of polynomial2 or softmax for D = {dim}", done.stderr)


class Table3(Case):
    COMMAND = ("table3", "--out", "out")

    def result(self):
        runs = [{"method": method, "seed": seed, "steps": 100, "epochs": 2.0, "seconds": 60.0, "peak_memory": 1e9,
                 "parameters": 4_000_000, "validation": 0.3, "test": test, "real_time_factor": 0.004,
                 "curve": [[50, 30.0, 0.6], [100, 60.0, 0.3]]}
                for method, seed, test in (("linear", 1, 0.30), ("linear", 2, 0.32), ("lstm", 1, 0.25))]
        lengths = [{"method": method, "seconds": seconds, "value": value, "threads": 2, "loss": seconds / 100,
                    "machine": "Another machine", "date": "2026-11-22"}
                   for method, seconds, value in (("linear", 8, 10.0), ("linear", 16, 10.0), ("full", 16, 12.5))]
        return {"machine": "A machine", "date": "2026-11-21", "minutes": 1.0, "precision": "fp32", "threads": 2,
                "runs": runs, "lengths": lengths}

    def test_a_page_with_pictures(self):
        self.write("in.json", self.result())
        done = self.reproduce("--from", "in.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = self.read("out/table3.md")
        self.assertIn("| linear | 31.00 (2 seeds, 2.00 apart) |", page)
        self.assertIn("| Bi-LSTM | 25.00 |", page)
        self.assertNotIn("| LSH-4 | ", page.split("## The length")[0])  # no such run exists
        self.assertIn("| 16 | – | 12.5 | – | 10.0 |", page)
        self.assertIn("| CTC loss, in addition | – | 0.160 to 0.160 | – | 0.080 to 0.160 |", page)
        self.assertIn("Another machine", page)
        self.assertEqual(len(list((self.dir / "out").iterdir())), 10)

    def test_refuses_what_is_no_result(self):
        whole = self.result()
        for broken, says in ((dict(whole, runs=[]), "no run"), ({}, "is missing or has the wrong type"), ([], "is missing or has the wrong type"),
                             (dict(whole, lengths=[{}]), "is missing or has the wrong type"), (dict(whole, machine=3), "wrong type")):
            self.refuses_record(broken, says)
        done = self.reproduce()
        self.assertEqual(done.returncode, 2)
        self.assertIn("--data", done.stderr)

    def test_other_lengths_of_a_benchmark(self):
        whole = self.result()
        self.write("in.json", whole)
        self.write("lengths.json", [dict(whole["lengths"][0], value=7.0)])
        done = self.reproduce("--from", self.dir / "in.json", "--lengths", "lengths.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| 8 | – | – | – | 7.00 |", self.read("out/table3.md"))
        self.assertEqual(len(json.loads(self.read("out/table3.json"))["lengths"]), 1)

    def test_the_benchmark_checks_and_times(self):
        if not has("linnet-bench-torch"):
            self.skipTest("no linnet-bench-torch")
        done = subprocess.run([reproduce_util.BIN / "linnet", "bench", "speech", "--to", "8", "--total", "8", "--json"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([record["method"] for record in json.loads(done.stdout)],
                         ["linear", "full", "reformer", "lstm"])


class Table4(Case):
    COMMAND = ("table4", "--out", "out")

    def test_a_page_with_a_picture(self):
        records = [dict(method=method, dataset=dataset, images_per_second=rate, batch=2, threads=2, isa="AVX3", N=784,
                        state_bytes=state, memory_last_bytes=grown)
                   for dataset in ("mnist", "cifar10")
                   for method, rate, grown, state in (("softmax", 0.02, 8e6, 7.83e6), ("stateful", 2, 24e6, 7.83e6),
                                                      ("linear", 20, 2e6, 549e3))]
        self.write("in.json", {"machine": "A machine", "date": "2026-11-22", "precision": "f32", "records": records})
        done = self.reproduce("--from", "in.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = self.read("out/table4.md")
        self.assertIn("| stateful softmax | 2 | 2.00 | 100 | 12.0 MB | 10.0 kB | 7.83 MB | 7.56 | 16.8 |", page)
        self.assertIn("| linear | 2 | 20.0 | 1,000 | 1.00 MB | 549 kB | 549 kB | 17.85 | 4,462 |", page)


TABLE5 = ["table5.md", "table5.json", "table5.png", "table5.svg", "table5-dark.png", "table5-dark.svg"]


def generated(dataset="mnist", method="linear", **changed):
    """A record of table 5."""
    record = {"name": "generate", "value": 500.0, "unit": "ms/image", "limit": 400.0, "ratio": 1.25, "checked": True,
              "model": dataset + " (random)", "method": method, "dataset": dataset, "stateless": method == "softmax",
              "N": 784 if dataset == "mnist" else 3072, "batch": 1, "precision": "f32", "threads": 2, "isa": "AVX3",
              "state_bytes": 549_000, "memory_growth_bytes": 0}
    if record["stateless"]:
        record.update(lengths=[1, 400, 783], us_at_lengths=[700.0, 40_000.0, 80_000.0])
    else:
        slope = 100 if method == "stateful" else 0
        record.update(us_by_eighths=[640.0 + slope * i for i in range(8)])
    return [{**record, **changed}]


class Table5(Case):
    COMMAND = ("table5", "--out", "out")

    def record(self, records, **changed):
        return {"command": "linnet reproduce table5 --threads 2", "machine": "A (machine) | <b>", "date": "2026-11-21",
                "precision": "f32", "records": records, **changed}

    def run_on(self, records, *arguments):
        self.write("in.json", self.record(records))
        return self.reproduce("--from", "in.json", *arguments)

    def test_a_page_with_pictures(self):
        records = (generated(method="softmax", value=50_000.0) + generated(method="stateful", value=750.0)
                   + generated() + generated("cifar10"))
        result = self.run_on(records)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(path.name for path in (self.dir / "out").iterdir()), sorted(TABLE5))
        page = self.read("out/table5.md")
        self.assertIn("| softmax | 50.0 | 100 |", page)  # 50 s, a hundred times linear's 0.5 s
        self.assertIn("| stateful softmax | 0.750 | 1.50 | 2.09 |", page)  # 1,340 us over 640
        self.assertIn("| linear | 0.500 | 1.00 | 1.00 |", page)
        self.assertIn("| stateful softmax | – |", page)  # in CIFAR-10's table, which has linear only
        self.assertIn("A (machine) ? ?b?", page)
        self.assertIn("linnet reproduce table5 --threads 2\n", page)
        for name in ("table5.svg", "table5-dark.svg"):  # text is drawn as glyphs
            self.assertGreater(len(list(xml.etree.ElementTree.parse(self.dir / "out" / name).iter())), 50)
        self.assertEqual((self.dir / "out" / "table5.png").read_bytes()[:4], b"\x89PNG")

    def test_refuses_what_is_no_such_record(self):
        for records, says in (([], "no measurement"), (3, "wrong type"), (generated(checked=False), "'checked'"),
                              (generated(batch=64), "'batch' is not one of [1]"), (generated("other"), "'dataset'"),
                              (generated(value=-1.0), "'value'"), (generated(method="reformer"), "'method'"),
                              (generated(us_by_eighths=[]), "no times"),
                              (generated(us_by_eighths=[1.0] * 7), "the wrong number of times"),
                              (generated(us_by_eighths=[0.0, 1.0]), "us_by_eighths"), (generated(N=1), "'N'"),
                              (generated(threads=1e300), "'threads'"), (generated(value=0), "'value'"),
                              (generated() + generated(), "two records of linear, MNIST"),
                              (generated(isa=3), "wrong type"), ([{"name": "generate"}], "is missing or has the wrong type")):
            self.refuses_record(self.record(records), says)
        self.refuses_record({}, "is missing or has the wrong type")
        self.refuses_record(self.record(generated(), machine=3), "wrong type")
        result = self.run_on(generated(), "--precision", "int8")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--from measures nothing", result.stderr)

    def test_measures(self):
        if not has("linnet-bench"):
            self.skipTest("no linnet-bench")
        result = self.reproduce("--dataset", "mnist", "--precision", "int8", "--methods", "linear,lsh-1", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(json.loads(result.stdout)["out"]), 6)
        page = self.read("out/table5.md")
        self.assertIn("linnet reproduce table5 --precision int8 --dataset mnist --methods linear,lsh-1\n", page)
        self.assertIn("| stateful softmax | – |", page)
        records = json.loads(self.read("out/table5.json"))["records"]
        self.assertEqual([(record["method"], record["stateless"]) for record in records],
                         [("lsh-1", True), ("linear", False)])


class Couplet(Case):
    COMMAND = ("couplet", "--out", "out")

    def result(self):
        rules = {"lines": 200, "length": 200, "punctuation": 200, "places": 190, "repeats": 180, "mirrored": 200,
                 "all": 170}
        shown = {"first": "天地", "second": "日月", "greedy": "山川", "drawn": "河海", "beam of 16": "江湖"}
        return {"machine": "A machine", "date": "2026-11-21",
                "perplexities": [{"model": "m", "data": "d", "perplexity": 61.8, "pairs": 2000, "characters": 12000,
                                  "unknown": 12, "left_out": 3}],
                "curves": [{"run": "m", "points": [[500, 200.0], [1000, 90.0], [1500, 95.0]], "network": network,
                            "layers": 2, "d_model": 64, "parameters": 1_000_000, "data": "couplets: 9 pairs",
                            "steps": 1500, "epochs": 1.5, "seconds": 90.0}
                           for network in ("transformer", "encoder-decoder")],
                "rules": [dict(rules, way=way) for way in ("greedy", "drawn, without rules")],
                "shown": [shown]}

    def test_a_page_with_pictures(self):
        self.write("in.json", self.result())
        done = self.reproduce("--from", "in.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = self.read("out/couplet.md")
        self.assertIn("| m | d | 61.8 | 2,000 | 12,000 | 0.100 | 3 |", page)
        self.assertIn("| drawn, without rules | 100 | 100 | 95.0 | 90.0 | 100 | 85.0 |", page)
        self.assertIn("| 天地 | 山川 | 河海 | 江湖 | 日月 |", page)
        self.assertIn("| m | couplets: 9 pairs | encoder and decoder, 2 + 2 layers of 64 | 1.00M | 1,500 | 1.50 | 1.50 "
                      "| 90.0 | 95.0 |", page)
        self.assertEqual(len(list((self.dir / "out").iterdir())), 6)
        self.assertEqual(json.loads(self.read("out/couplet.json"))["experiment"], "couplet")
        done = self.reproduce("--from", self.dir / "in.json", "--out", self.dir / "new" / "folder")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.dir / "new" / "folder" / "couplet.md").exists())

    def test_refuses_what_is_no_result(self):
        whole = self.result()
        for broken in ({}, [], dict(whole, machine=3), dict(whole, rules=[]), dict(whole, shown=[{}]),
                       dict(whole, curves=[dict(whole["curves"][0], points=[])]), dict(whole, experiment="table1")):
            self.refuses_record(broken)
        done = self.reproduce()
        self.assertEqual(done.returncode, 2)
        self.assertIn("--data", done.stderr)


class Documents(Case):
    """The pages in docs/results match the records there."""
    RESULTS = ROOT / "docs" / "results"

    def test_pages_are_those_of_their_records(self):
        for name in ALL:
            done = self.reproduce(name, "--from", self.RESULTS / (name + ".json"), "--out", name)
            self.assertEqual(done.returncode, 0, done.stderr)
            for file in (name + ".md", name + ".json"):
                self.assertEqual(self.read(f"{name}/{file}"), (self.RESULTS / file).read_text(),
                                 "differs from its record; write it anew: linnet reproduce NAME --from")
            # The bytes of figures depend on the machine's fonts, so only their names are compared.
            drawn = sorted(path.name for path in (self.dir / name).iterdir())
            self.assertEqual([name for name in drawn if not (self.RESULTS / name).exists()], [])


class Descriptions(unittest.TestCase):
    """The descriptions of the experiments, experiments/pages/*.json."""
    PAGES = ROOT / "experiments" / "pages"

    @classmethod
    def setUpClass(cls):
        cls.all = {path.stem: json.loads(path.read_text(), object_pairs_hook=cls.once)
                   for path in cls.PAGES.glob("*.json")}

    @staticmethod
    def once(pairs):
        assert len({name for name, _ in pairs}) == len(pairs), f"a field twice: {pairs}"
        return dict(pairs)

    def describe(self, name):
        merged = {}
        for part in (*(self.describe(like) for like in self.all[name].get("like", [])), self.all[name]):
            merged |= {**part, "options": merged.get("options", []) + part.get("options", [])}
        return merged

    def test_help_and_pages(self):
        for name in ALL:
            about = self.describe(name)
            self.assertTrue((self.PAGES / (about.get("page", name) + ".md")).exists(), name)
            self.assertTrue(all(example.startswith("  linnet reproduce ") for example in about["examples"]), name)
            for option in about["options"]:
                self.assertLessEqual(set(option), {"name", "type", "help", "default", "range", "real", "choices",
                                                   "many", "flag", "excludes", "missing", "amends"}, name)
                self.assertTrue(option["name"].startswith("--") and option["help"], name)
                if "range" in option and option.get("default") is not None:
                    self.assertTrue(option["range"][0] <= option["default"] <= option["range"][1], option)

    def test_the_papers_numbers(self):
        """Tables 1 and 2 repeat the images per second of table 4. Other numbers are in plausible ranges."""
        for table, dataset in zip(("table1", "table2"), self.describe("generate")["datasets"]):
            about = self.describe(table)
            self.assertEqual([method["name"] for method in about["methods"]], ["softmax", "lsh-1", "lsh-4", "linear"])
            rates = {method["name"]: method["paper"]["rate"] for method in dataset["methods"]}
            for method in about["methods"]:
                self.assertEqual(method["paper_images"], rates[method["name"]], (table, method["name"]))
                self.assertTrue(0.5 < method["paper_bits"] < 8)
            self.assertEqual((about["dataset"], about["chunk"]), (dataset["set"], dataset["chunk"]))
            for method in dataset["methods"]:
                self.assertTrue(all(value > 0 for value in method["paper"].values()), method)
        for method in self.describe("table3")["methods"]:
            self.assertTrue(0 < method["paper_per"] < 100 and method["paper_epoch"] > 0, method)

    def test_the_parts_of_all(self):
        parts = self.describe("all")["parts"]
        self.assertEqual(sorted(part["name"] for part in parts), sorted(set(ALL) - {"batch", "polynomial", "recall", "couplet"}))
        self.assertLess(sum(part.get("share", 0) for part in parts), 0.8)  # the rest is for parts without a budget
        for part in parts:
            if "of" in part:
                self.assertEqual(self.describe(part["name"])["work"], self.describe(part["of"])["work"])


if __name__ == "__main__":
    main()
