#!/usr/bin/env python3
"""Tests of bench/scale.py and its simulation, on small traces made here.

    tests/scale_test.py [unittest arguments]
"""

import dataclasses
import datetime
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))
sys.dont_write_bytecode = True

from scale_model import POLICIES, Machine, Request, Simulation, form_conversations, make_load  # noqa: E402

SHARING = ("shared", "affinity", "spill")
RECORD = {"step_seconds": {"1": 0.01, "2": 0.012, "4": 0.016}, "read_tokens_per_second": 1000, "request_seconds": 0.02,
          "state_bytes": 1e6, "memory_bytes": 64e6, "sequences": 16, "kept_bytes": 1e9}
MACHINE = Machine(**{**RECORD, "step_seconds": {1: 0.01, 2: 0.012, 4: 0.016}})


def machine(**fields):
    return dataclasses.replace(MACHINE, **fields)


def simulate(load, one=MACHINE, count=1, policy="random", **options):
    simulation = Simulation(one, count, policy, seed=1, **options)
    simulation.run(load)
    return simulation


def make_trace(requests=600, seconds=600.0, seed=1):
    """Rows as of read_trace(): Poisson arrivals, contexts of very different lengths."""
    rng = random.Random(seed)
    times = sorted(rng.uniform(0, seconds) for _ in range(requests))
    return [(at, 1 + int(rng.expovariate(1 / 300)), 1 + int(rng.expovariate(1 / 40))) for at in times]


def conversation_load(conversations, turns, gap):
    """Conversations of `turns` requests, `gap` seconds apart, each with 50 new tokens."""
    load = []
    for number in range(conversations):
        before = None
        for turn in range(turns):
            context = before.context + before.generated + 50 if before else 50
            before = Request(number * 0.5 + turn * gap, context, 20, number, before)
            load.append(before)
    return sorted(load, key=lambda request: request.arrival)


def times(load):
    return [(request.first, request.end) for request in load]


def rounds_one_by_one(load, one):
    """Oracle: the rounds of one server, token by token, in plain loops."""
    steps, now, waiting, running = one.steps(), 0.0, list(load), []  # running: [request, to read, to generate]
    reads, ends = [], {}
    while waiting or running:
        if not running and waiting[0].arrival > now:
            now = waiting[0].arrival
        while waiting and waiting[0].arrival <= now and len(running) < one.sequences:
            reads.append([waiting[0], waiting[0].context, waiting[0].generated])
            running.append(reads[-1])
            waiting.pop(0)
        budget = one.round_tokens
        while reads and budget > 0:
            entry = reads.pop(0)
            piece = min(128, entry[1], budget)
            budget -= piece
            entry[1] -= piece
            now += piece / one.read_tokens_per_second
            if entry[1] > 0:
                reads.append(entry)
                continue
            now += one.request_seconds
            entry[2] -= 1
            ends[id(entry[0])] = [now, now]
            if entry[2] == 0:
                running.remove(entry)
        stepping = [entry for entry in running if entry[1] == 0]
        if stepping:
            now += steps[len(stepping)]
        for entry in stepping:
            entry[2] -= 1
            ends[id(entry[0])][1] = now
            if entry[2] == 0:
                running.remove(entry)
    return [tuple(ends[id(request)]) for request in load]


class OneMachine(unittest.TestCase):
    def assert_times(self, load, expected):
        for found, wanted in zip(times(load), expected, strict=True):
            self.assertAlmostEqual(found[0], wanted[0], places=7)
            self.assertAlmostEqual(found[1], wanted[1], places=7)

    def test_one_request(self):
        for context, generated in ((1, 1), (128, 2), (5000, 100)):
            load = [Request(3.0, context, generated, 0)]
            simulate(load)
            first = 3 + context / 1000 + 0.02
            self.assert_times(load, [(first, first + (generated - 1) * 0.01)])

    def test_deterministic_queue(self):
        # One sequence at a time, a request each 0.5 s, each takes 0.2 + 0.02 + 40 x 0.01 s.
        load = [Request(0.5 * i, 200, 41, i) for i in range(50)]
        simulate(load, machine(sequences=1))
        self.assert_times(load, [(0.62 * i + 0.22, 0.62 * (i + 1)) for i in range(50)])

    def test_a_step_takes_the_measured_time(self):
        steps = machine(sequences=8).steps()
        for count, seconds in ((1, 0.01), (2, 0.012), (3, 0.014), (4, 0.016), (8, 0.024)):
            self.assertAlmostEqual(steps[count], seconds)
        self.assertEqual(machine(step_seconds={1: 0.01}).steps()[1:], [0.01] * 16)

    def test_equals_rounds_one_by_one(self):
        for seed in range(20):
            rng = random.Random(seed)
            load = [Request(at, context, generated, i) for i, (at, context, generated) in
                    enumerate(make_trace(60, rng.choice((5, 20, 60)), seed))]
            one = machine(sequences=rng.choice((1, 3, 16)), queue=1000)
            simulate(load, one)
            with self.subTest(seed=seed):
                self.assert_times(load, rounds_one_by_one(load, one))

    def test_memory_limits_sequences(self):
        def most_at_once(one):
            load = [Request(0.0, 100, 100, i) for i in range(40)]
            simulate(load, one)
            return max(sum(other.first <= request.first < other.end for other in load) for request in load)

        self.assertEqual(most_at_once(machine(memory_bytes=5.5e6)), 5)
        self.assertEqual(most_at_once(machine()), 16)
        # A cache of 10 kB a token: 200 tokens take 2 MB.
        self.assertEqual(most_at_once(machine(state_bytes=0, token_bytes=1e4, memory_bytes=9e6)), 4)

    def test_reading_caches_takes_time(self):
        load = [Request(0.0, 1000, 2, 0)]
        simulate(load, machine(state_bytes=0, token_bytes=1e4, cache_bytes_per_second=1e9))
        self.assertAlmostEqual(load[0].end - load[0].first, 0.01 + 1000.5 * 1e4 / 1e9)
        # The cache of an answer that has ended is not read again.
        load = [Request(0.0, 1000, 50, 0), Request(10.0, 100, 2, 1)]
        simulate(load, machine(state_bytes=0, token_bytes=1e4, cache_bytes_per_second=1e9))
        self.assertAlmostEqual(load[1].end - load[1].first, 0.01 + 100.5 * 1e4 / 1e9)


class Balancer(unittest.TestCase):
    def test_served_and_refused_are_all(self):
        for policy in POLICIES:
            load = [Request(0.001 * i, 500, 50, i) for i in range(400)]
            simulation = simulate(load, machine(queue=20), 3, policy)
            served = sum(request.end >= 0 for request in load)
            refused = sum(request.refused for request in load)
            with self.subTest(policy=policy):
                self.assertEqual(served + refused, 400)
                self.assertEqual(refused, simulation.refused)
                self.assertGreaterEqual(served, 3 * (16 + 20))
                self.assertGreater(refused, 0)
                self.assertEqual(simulation.open, 0)
                self.assertTrue(all(server.open == 0 and abs(server.used) < 1 for server in simulation.servers))

    def test_all_but_the_first_context_is_restored(self):
        for policy in POLICIES:
            load = conversation_load(30, 4, gap=30)
            chain = {id(request): request.before for request in load}
            simulation = simulate(load, count=4, policy=policy)
            with self.subTest(policy=policy):
                for request in load:
                    before = chain[id(request)]
                    known = before.context + before.generated if before and policy in SHARING else 0
                    self.assertEqual(request.known, known)
                if policy == "shared":  # each state is written once; all but the last of a conversation are read
                    self.assertEqual(simulation.moved_bytes, (30 * 4 + 30 * 3) * 1e6)
                elif policy != "spill":
                    self.assertEqual(simulation.moved_bytes, 0)

    def test_snapshots_hold_multiples_of_32_tokens_of_the_prompt(self):
        load = conversation_load(1, 2, gap=30)
        simulate(load, policy="affinity", reuse="snapshots")
        self.assertEqual([request.known for request in load], [0, 32])

    def test_states_that_do_not_fit_are_read_again(self):
        load = conversation_load(10, 3, gap=30)
        simulate(load, machine(kept_bytes=3.5e6), policy="affinity")
        self.assertEqual(sum(request.known > 0 for request in load), 0)  # 10 conversations in turn, room for 3

    def test_a_moving_state_takes_time(self):
        load = conversation_load(1, 2, gap=30)
        simulate(load, machine(link_bytes_per_second=1e6, link_seconds=0.5), policy="shared")
        self.assertAlmostEqual(load[1].first - load[1].sent, 1 + 0.5 + 0.05 + 0.02)
        load = conversation_load(2, 2, gap=30)  # two states, 0.5 s apart, over one network of 1 s a state
        simulate(load, machine(link_bytes_per_second=1e6), policy="shared")
        self.assertAlmostEqual(load[3].first - load[3].sent, 0.5 + 1 + 0.001 + 0.05 + 0.02)

    def test_spill(self):
        # The hash sends all conversations to one machine of four. They begin one after the other, and continue at once.
        def run(limit):
            load = conversation_load(12, 2, gap=30)
            for request in load[12:]:
                request.arrival = 30 + 0.001 * request.conversation
            simulation = Simulation(MACHINE, 4, "spill", seed=1, spill=limit)
            simulation.homes = {number: simulation.servers[2] for number in range(12)}
            simulation.run(load)
            self.assertEqual([request.known for request in load], [0] * 12 + [70] * 12)  # states that move count, too
            self.assertEqual(simulation.moved_bytes, simulation.moves * 1e6)
            self.assertEqual(sum(len(server.kept) for server in simulation.servers), 12)  # none is in two places
            self.assertEqual(sum(server.kept_bytes for server in simulation.servers), 12e6)
            return simulation.moves, [server.busy > 0 for server in simulation.servers]

        moves, used = run(1.5)
        self.assertTrue(all(used))
        self.assertTrue(6 <= moves <= 9, moves)
        self.assertEqual(run(100), (0, [False, False, True, False]))

    def test_clients_wait_for_answers(self):
        first = Request(0.0, 1000, 10, 0)
        load = [first, Request(0.1, 1100, 10, 0, first)]
        simulate(load, policy="affinity")
        self.assertEqual(load[1].sent, first.end)
        self.assertEqual(load[1].known, 1010)

    def test_more_machines_serve_no_less(self):
        for policy in POLICIES:
            load_of = lambda: [Request(0.02 * i, 300, 40, i) for i in range(1000)]  # noqa: E731
            served = []
            for count in (1, 2, 4, 8, 32):
                load = load_of()
                simulate(load, machine(queue=10), count, policy)
                served.append(sum(request.end >= 0 for request in load))
            with self.subTest(policy=policy):
                self.assertEqual(served, sorted(served))
                self.assertEqual(served[-1], 1000)
                self.assertLess(served[0], 1000)


class Load(unittest.TestCase):
    def test_conversations(self):
        trace = make_trace()
        self.assertEqual(form_conversations(trace, 0, 100, 1), [-1] * len(trace))
        before = form_conversations(trace, 1, 50, 1)
        continued = [(j, i) for i, j in enumerate(before) if j >= 0]
        self.assertGreater(len(continued), 100)
        self.assertEqual(len({j for j, _ in continued}), len(continued))  # each request is continued at most once
        for j, i in continued:
            self.assertGreater(trace[i][1], trace[j][1] + trace[j][2])
            self.assertGreater(trace[i][0], trace[j][0] + 10)

    def test_rate(self):
        trace = make_trace(6000)
        before = form_conversations(trace, 0.7, 50, 1)
        for factor in (0.25, 1, 2.5, 10):
            load = make_load(trace, before, factor, (60, 540), seed=1)
            self.assertAlmostEqual(len(load) / (factor * 4800), 1, delta=0.15)
            self.assertTrue(all(0 <= request.arrival < 480 for request in load))
            inside = sum(request.before is not None and request.before.arrival > -math.inf for request in load)
            self.assertGreater(inside, len(load) / 10)
        self.assertFalse(any(request.before and request.before.arrival == -math.inf
                             for request in make_load(trace, before, 1, (60, 540), 1, cold=True)))


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="linnet_scale_test.")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.record = self.write("record.json", json.dumps({"machines": {"one": RECORD}}))
        start = datetime.datetime(2023, 11, 16)
        self.trace = self.write("trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
            f"{start + datetime.timedelta(seconds=at)}0,{context},{generated}\n" for at, context, generated
            in make_trace()))

    def write(self, name, text):
        (self.dir / name).write_text(text)
        return self.dir / name

    def run_program(self, *arguments):
        return subprocess.run([sys.executable, "-B", BENCH / "scale.py", *map(str, arguments)], capture_output=True,
                              text=True)

    def results(self, command, *arguments):
        done = self.run_program(command, self.trace, "--record", self.record, "--minutes", "0,9", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_simulate(self):
        results = self.results("simulate", "--machines", 4, "--rate", 4)
        self.assertEqual([result["policy"] for result in results], list(POLICIES))
        for result in results:
            self.assertAlmostEqual(result["offered_per_second"], 4, delta=0.4)
            self.assertEqual(result["served_per_second"], result["offered_per_second"])
            self.assertLess(result["first_p50"], result["first_p99"])
            self.assertTrue(0 < result["utilization"] <= result["utilization_most"] <= 1)
            self.assertEqual(result["tokens_restored"] > 0, result["policy"] in SHARING)

    def test_the_seed_decides(self):
        first, second, other = (self.results("simulate", "--machines", 3, "--rate", 3, "--seeds", seed)
                                for seed in (1, 1, 2))
        self.assertEqual(first, second)
        self.assertNotEqual(first, other)

    def test_search(self):
        rates = [self.results("search", "--machines", count, "--policy", "least", "--first", 2)[0] for count in (1, 4)]
        self.assertTrue(all(result["first_p99"] <= 2 and result["refused"] == 0 for result in rates))
        self.assertGreater(rates[1]["offered_per_second"], 3 * rates[0]["offered_per_second"])
        never = self.results("search", "--policy", "random", "--first", 0.001)[0]
        self.assertEqual(never["offered_per_second"], 0)

    def test_refuses(self):
        def refuses(fragment, *arguments):
            done = self.run_program(*arguments)
            with self.subTest(arguments=arguments):
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn(fragment, done.stderr)

        def bad_record(fragment, text, *arguments):
            refuses(fragment, "search", self.trace, "--record", self.write("bad.json", text), *arguments)

        def bad_trace(fragment, text):
            refuses(fragment, "search", self.write("bad.csv", text), "--record", self.record)

        fields = {name: value for name, value in RECORD.items() if name != "state_bytes"}
        refuses("nowhere.csv: cannot be read", "search", self.dir / "nowhere.csv", "--record", self.record)
        refuses("nowhere.json: cannot be read", "search", self.trace, "--record", self.dir / "nowhere.json")
        bad_record("not a record", "{")
        bad_record("no machine or field 'machines'", "{}")
        bad_record("state_bytes", json.dumps({"machines": {"one": fields}}))
        bad_record("begin with 1", json.dumps({"machines": {"one": {**RECORD, "step_seconds": {"2": 1}}}}))
        bad_record("begin with 1", json.dumps({"machines": {"one": {**RECORD, "step_seconds": {}}}}))
        bad_record("positive", json.dumps({"machines": {"one": {**RECORD, "read_tokens_per_second": 0}}}))
        bad_record("positive", json.dumps({"machines": {"one": {**RECORD, "link_seconds": "nan"}}}))
        bad_record("no state fits", json.dumps({"machines": {"one": {**RECORD, "memory_bytes": 1}}}))
        bad_record("'two'", json.dumps({"machines": {"one": RECORD}}), "--model", "two")
        bad_trace("TIMESTAMP", "a,b\n1,2\n")
        bad_trace("at least one request", "TIMESTAMP,ContextTokens,GeneratedTokens\n")
        bad_trace("must be CSV", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,x,1\n")
        known = ("search", self.trace, "--record", self.record)
        refuses("no request in minutes", *known, "--minutes", "100,200")
        refuses("--minutes", *known, "--minutes", "5")
        refuses("no field memory", *known, "--set", "memory=1")
        refuses("--set", *known, "--set", "memory_bytes")
        refuses("--share", *known, "--share", "2")
        refuses("--machines", *known, "--machines", "0")
        refuses("--rate", "simulate", *known[1:], "--rate", "nan")
        refuses("--policy", *known, "--policy", "magic")
        refuses("cannot run", "measure", "model.safetensors", "--programs", self.dir)


if __name__ == "__main__":
    unittest.main()
