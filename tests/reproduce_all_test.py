#!/usr/bin/env python3
"""Tests the commands that linnet reproduce runs, and how it resumes. A script takes the place of linnet.

    tests/reproduce_all_test.py BIN_DIR [unittest arguments]
"""

import json
import signal
import time

from reproduce_util import ALL, StandInCase, main, records


class All(StandInCase):
    """`reproduce all` with a script in place of linnet that logs its arguments and writes empty records."""
    STAND_IN = """#!/usr/bin/env python3
import os, pathlib, signal, sys, time
arguments = sys.argv[2:]
name, value = arguments[0], lambda flag: arguments[arguments.index(flag) + 1]
with open("calls", "a") as calls:
    print(*arguments, file=calls)
def stop(*_):
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
if os.environ.get("FAILS") == name:
    sys.exit("it fails")
if os.environ.get("HANGS") == name:
    pathlib.Path("hangs").touch()
    time.sleep(60)
pathlib.Path(value("--out")).mkdir(exist_ok=True)
(pathlib.Path(value("--out")) / (name + ".json")).write_text("{}")
print("wrote", name)
"""

    def setUp(self):
        super().setUp()
        (self.dir / "data").mkdir()

    def all(self, **env):
        return self.reproduce("all", "--budget", "1h", **env)

    def calls(self):
        return [line.split() for line in super().calls()]

    def kept(self):
        return json.loads((self.dir / "runs" / "all.json").read_text())

    def test_every_part_once(self):
        code, out, err = self.all()
        self.assertEqual(code, 0, err)
        calls = self.calls()
        names = [call[0] for call in calls]
        self.assertEqual(sorted(names), sorted(set(ALL) - {"batch", "polynomial", "recall", "couplet"}))
        self.assertEqual(out.splitlines(), [f"wrote {name}" for name in names])
        budgets = [int(call[call.index("--budget") + 1]) for call in calls if "--budget" in call]
        self.assertEqual(len(budgets), 3)  # table 3 has --minutes, the time per training, instead
        self.assertLess(sum(budgets), 3600)
        # A figure uses the models of its table.
        works = {call[0]: call[call.index("--work") + 1] for call in calls if "--work" in call}
        self.assertEqual(works["figure6"], works["table1"])
        self.assertEqual(works["figure9"], works["table2"])
        # A second call repeats only figure 5, which is drawn from the records of other experiments.
        code, _, err = self.all()
        self.assertEqual(code, 0, err)
        self.assertEqual([call[0] for call in self.calls()], ["figure5"])

    def test_what_fails_is_named_and_done_alone(self):
        code, _, err = self.all(FAILS="table2")
        self.assertEqual(code, 1)
        self.assertIn("not reproduced: table2, figure4, figure8, figure9;", err.splitlines()[-1])
        self.calls()
        code, _, err = self.all()
        self.assertEqual(code, 0, err)
        self.assertEqual([call[0] for call in self.calls()], ["table2", "figure4", "figure5", "figure8", "figure9"])

    def test_the_clock_goes_on_where_it_was_stopped(self):
        process = self.start("all", "--budget", "1h", HANGS="table4")
        while not (self.dir / "hangs").exists():
            self.assertIsNone(process.poll(), "linnet-reproduce has ended")
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("stopped; the same command resumes", err.splitlines()[-1])
        kept = self.kept()
        self.assertEqual(kept["done"], ["table1", "table2", "table3"])
        self.assertGreater(kept["spent"], 0)
        self.calls()
        # The budget is used up: the part in progress is finished, the remaining parts are left out and get a
        # new budget in the next call.
        (self.dir / "runs" / "all.json").write_text(json.dumps(dict(kept, spent=3601)))
        code, _, err = self.all()
        self.assertEqual(code, 1)
        self.assertIn("table5: left out, since the budget is used up", err)
        self.assertEqual([call[0] for call in self.calls()], ["table4", "figure5"])
        self.assertEqual(self.kept()["spent"], 0)
        code, _, err = self.all()
        self.assertEqual(code, 0, err)
        self.assertEqual(len(self.calls()), 10)

    def test_records_of_earlier_calls(self):
        path = self.dir / "runs" / "all.json"
        path.parent.mkdir()
        whole = {"budget": 3600.0, "precision": "fp32", "spent": 10.0, "begun": "", "done": []}
        for broken in (dict(whole, spent=-1), dict(whole, spent="x"), dict(whole, begun=3), dict(whole, done=3),
                       dict(whole, budget=7200.0), [], "{"):
            path.write_text(broken if isinstance(broken, str) else json.dumps(broken))
            code, _, err = self.all()
            self.assertEqual(code, 2, broken)
            self.assertEqual(len(err.splitlines()), 1, err)
            self.assertIn("runs/all.json", err)
            self.assertEqual(self.calls(), [])
        (self.dir / "out").mkdir()
        (self.dir / "out" / "table1.json").write_text("{}")
        path.write_text(json.dumps({"budget": 3600.0, "precision": "fp32", "done": ["table1"]}))  # no "spent"
        code, _, err = self.all()
        self.assertEqual(code, 0, err)
        self.assertEqual(len(self.calls()), 13)


class Kept(StandInCase):
    """Measurements of a stopped experiment are not repeated. A script in place of linnet fails for one method."""
    STAND_IN = """#!/usr/bin/env python3
import json, os, sys
method = sys.argv[sys.argv.index("--methods") + 1]
with open("calls", "a") as calls:
    print(method, file=calls)
if os.environ.get("FAILS") == method:
    sys.exit("it fails")
print(json.dumps([record for record in json.load(open("bench.json")) if record["method"] == method]))
"""

    def test_the_next_call_goes_on(self):
        (self.dir / "bench.json").write_text(json.dumps(records()))

        def run(**env):
            code, _, said = self.reproduce("figure1", "--methods", "linear,softmax,lsh-1", **env)
            return code, self.calls(), said

        code, calls, said = run(FAILS="softmax")
        self.assertEqual((code, calls), (1, ["linear", "softmax"]), said)
        self.assertFalse((self.dir / "out").exists())
        code, calls, said = run()
        self.assertEqual((code, calls), (0, ["softmax", "lsh-1"]), said)
        self.assertIn("linear: measured before", said)
        self.assertIn("| N | linear | softmax | lsh-1 |", (self.dir / "out" / "figure1.md").read_text())
        # A finished experiment removes its work, so the next call measures everything again.
        self.assertFalse((self.dir / "runs").exists())
        self.assertEqual(run()[1], ["linear", "softmax", "lsh-1"])


class Trained(StandInCase):
    """Table 3 with a script in place of linnet that writes records without training."""
    STAND_IN = """#!/usr/bin/env python3
import json, os, pathlib, sys
verb, arguments = sys.argv[1], sys.argv[2:]
value = lambda flag: arguments[arguments.index(flag) + 1]
with open("calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
if verb == "train":
    run = pathlib.Path(value("--out"))
    run.mkdir(parents=True, exist_ok=True)
    if os.environ.get("STOPS") == run.name:
        sys.exit(130)
    steps, every = int(value("--steps")), int(value("--log-every")) if "--log-every" in arguments else 10
    metrics = [{"step": step, "seconds": step * 0.5, "lr": 1e-3, "peak_memory": 1e6 + step}
               for step in range(every, steps + 1, every)]
    metrics.append({"step": steps, "seconds": steps * 0.5, "validation_phone_error_rate": 0.25})
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + chr(10) for record in metrics))
    (run / "config.json").write_text(json.dumps({"steps": steps}))
    for file in ("state.safetensors", "model.safetensors"):
        (run / file).touch()
elif verb == "info":
    steps = json.loads((pathlib.Path(arguments[0]).parent / "config.json").read_text())["steps"]
    print(json.dumps({"training": {"steps": steps, "epochs": 1.5}, "parameters": 1000}))
elif verb == "eval":
    print(json.dumps({"phone_error_rate": 0.3, "left_out": 0, "real_time_factor": 0.01}))
else:
    print(json.dumps([{"method": "linear", "seconds": 8.0, "value": 2.0, "loss": 0.5, "threads": 2,
                       "machine": "A machine", "date": "2026-11-23"}]))
"""

    def test_plans_trains_and_goes_on(self):
        def run(*more, code=0, **env):
            got, _, said = self.reproduce("table3", "--data", "an4", "--minutes", "1", "--seeds", "2", "--precision",
                                          "bf16", *more, **env)
            self.assertEqual(got, code, said)
            return [call for call in self.calls() if call.startswith("train")], said

        calls, said = run(code=130, STOPS="full-1")
        self.assertIn("table3: stopped; no page is written", said.splitlines()[-1])
        # First, each of the four methods is timed: an update takes half a second, by the script's records. Then come
        # trainings of a minute (120 updates) each.
        self.assertEqual([call.split("--out ")[1] for call in calls],
                         [f"runs/table3/{name}" for name in ("update-lstm", "update-full", "update-reformer",
                                                             "update-linear", "lstm-1", "lstm-2", "full-1")])
        calls, said = run()
        self.assertIn("Bi-LSTM, seed 2: trained before, 120 updates", said)
        self.assertEqual([call.split("--out ")[1] for call in calls],
                         [f"runs/table3/{name}" for name in ("full-1", "reformer-1", "linear-1", "linear-2")])
        self.assertIn("--attention linear --data an4 --seed 2 --precision bf16 --checkpoint-every 200 --steps 120",
                      calls[-1])
        record = json.loads((self.dir / "out" / "table3.json").read_text())
        self.assertEqual([(run["method"], run["seed"]) for run in record["runs"]],
                         [("lstm", 1), ("lstm", 2), ("full", 1), ("reformer", 1), ("linear", 1), ("linear", 2)])
        for made in record["runs"]:
            self.assertEqual((made["steps"], made["seconds"], made["peak_memory"], made["curve"]),
                             (120, 60.0, 1e6 + 120, [[120, 60.0, 0.25]]))
        self.assertIn("| linear | 30.00 (2 seeds, 0.00 apart) |", (self.dir / "out" / "table3.md").read_text())
        self.assertIn("with other settings; choose another --work", run("--threads", "3", code=2)[1])


if __name__ == "__main__":
    main()
