#!/usr/bin/env python3
"""Simulates machines that run `linnet serve` behind a load balancer, under the shape of a published request trace.

    bench/scale.py measure MODEL --name NAME > record.json            measures a machine through `linnet serve`
    bench/scale.py simulate TRACE --record record.json --machines 10 --rate 20
    bench/scale.py search TRACE --record record.json --machines 10 --first 5
    bench/scale.py replay TRACE MODEL --record record.json --rate 1   compares the simulation with a real server
    bench/scale.py figure results.jsonl > scale.svg                   draws what `simulate` printed at several rates

TRACE is a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens, for example Azure's
AzureLLMInferenceTrace_conv.csv (docs/scale.md says where it is). All but `figure` print JSON.
Times are in seconds.
"""

import argparse
import contextlib
import datetime
import http.client
import json
import math
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True  # leaves no __pycache__ in the source tree
from scale_model import POLICIES, InputError, Machine, Simulation, form_conversations, make_load, read_trace


def quantile(values, share):
    values = sorted(values)
    return values[int(share * (len(values) - 1))] if values else None


def per_token(request):
    """Seconds between two tokens of an answer."""
    return (request.end - request.first) / (request.generated - 1)


def summary(load, seconds):
    """Rates and times of requests that have run."""
    served = [request for request in load if request.end >= 0]
    first = [request.first - request.sent for request in served]
    between = [per_token(request) for request in served if request.generated > 1]
    return {"offered_per_second": len(load) / seconds, "served_per_second": len(served) / seconds,
            "refused": sum(request.refused for request in load), "requests": len(load),
            "first_p50": quantile(first, 0.5), "first_p99": quantile(first, 0.99),
            "token_p50": quantile(between, 0.5), "token_p99": quantile(between, 0.99),
            "tokens_read": sum(request.context - request.known for request in served),
            "tokens_restored": sum(request.known for request in served),
            "tokens_generated": sum(request.generated for request in served)}


class Case:
    """A trace, a machine and the assumptions, from the options."""

    def __init__(self, options, seed):
        self.options, self.seed = options, seed
        self.machine = Machine.load(options.record, options.model, options.set)
        self.trace = read_trace(options.trace)
        self.before = form_conversations(self.trace, options.share, options.message, seed)
        self.window = (60 * options.minutes[0], 60 * options.minutes[1])
        self.seconds = self.window[1] - self.window[0]
        inside = sum(self.window[0] <= row[0] < self.window[1] for row in self.trace)
        if inside == 0:
            raise InputError(f"{options.trace}: has no request in minutes {options.minutes}; give others (--minutes)")
        self.trace_rate = inside / self.seconds

    def load(self, rate, cold=False):
        return make_load(self.trace, self.before, rate / self.trace_rate, self.window, self.seed, self.options.shrink,
                         cold)

    def simulate(self, policy, rate, give_up=False):
        """Returns the results of a run, or None if it was given up."""
        load = self.load(rate)
        options = self.options
        simulation = Simulation(self.machine, options.machines, policy, self.seed, options.reuse, options.spill,
                                options.first)
        if not simulation.run(load, give_up):
            return None
        last = max((request.end for request in load), default=0)
        busy = [server.busy / last if last > 0 else 0 for server in simulation.servers]
        measured = [request for request in load if request.arrival >= options.warm]
        return {"policy": policy, "machines": options.machines, "token_bytes": self.machine.token_bytes,
                **summary(measured, self.seconds - options.warm),
                "moved_bytes": simulation.moved_bytes, "moves": simulation.moves, "spilled": simulation.spilled,
                "utilization": sum(busy) / len(busy), "utilization_most": max(busy)}

    def search(self, policy):
        """Results at the highest rate, within --tolerance, at which nothing is refused and first tokens are in time."""
        machine, count = self.machine, self.options.machines
        cost = statistics.fmean(context / machine.read_tokens_per_second +
                                generated * machine.steps()[-1] / machine.sequences
                                for _, context, generated in self.trace)
        low, high, best = 0.0, 2 * count / cost, None
        while high - low > self.options.tolerance * high and high > 0.01 * count / cost:
            rate = (low + high) / 2 if best or high < count / cost else high / 2
            result = self.simulate(policy, rate, give_up=True)
            ok = result and result["refused"] == 0 and result["requests"] and \
                result["first_p99"] <= self.options.first
            low, high, best = (rate, high, result) if ok else (low, rate, best)
        return best or {"policy": policy, "machines": count, "offered_per_second": 0}


@contextlib.contextmanager
def serving(options, *flags):
    """Runs `linnet serve` on one thread. Yields a function that connects to it."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    command = [pathlib.Path(options.programs) / "linnet", "serve", options.file, "--port", "0", "--threads", "1",
               "--timeout", "600", "--quiet", *map(str, flags)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    except OSError as error:
        raise InputError(f"{command[0]}: cannot run ({error.strerror}); build it, or give its folder (--programs)")
    try:
        says = process.stdout.readline() + process.stdout.readline()
        port = re.search(r"http://127\.0\.0\.1:(\d+)/", says)
        if not port:
            raise InputError(process.stderr.read().strip() or f"{command[0]}: does not serve")
        yield lambda: http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=600)
    finally:
        process.terminate()
        process.communicate()


def ask(connection, prompt, tokens, **fields):
    """Sends a request; returns its answer's status and stream of bytes."""
    connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": tokens, **fields}),
                       {"Content-Type": "application/json"})
    return connection.getresponse()


def prompt_of(conversation, tokens):
    """The conversation's first tokens. All of a conversation's prompts begin alike. Bytes of every vocabulary."""
    rng = random.Random(conversation)
    return [rng.randrange(3, 250) for _ in range(tokens)]


def measure(options):
    """Prints a record of this machine: the fastest of `--repeat` times for each number, through the server."""
    def seconds(prompt, count, tokens):
        start = time.perf_counter()
        answer = ask(connection, prompt, tokens, n=count, seed=1)
        body = answer.read()
        took = time.perf_counter() - start
        if answer.status != 200 or json.loads(body)["usage"]["completion_tokens"] < 0.9 * count * tokens:
            raise InputError(f"{options.file}: no full answer: {body[:200]}")
        return took

    def fastest(*what):
        return min(seconds(*what) for _ in range(options.repeat))

    flags = ("--snapshots", 0, "--sequences", options.sequences, "--memory", options.memory, "--max-candidates",
             options.sequences)
    with serving(options, *flags) as connect:
        connection = connect()
        seconds(prompt_of(0, 32), 1, 8)
        short, long = (fastest(prompt_of(length, length), 1, 1) for length in (128, 1024))
        rate = (1024 - 128) / (long - short)
        steps, count = {}, 1
        while count <= options.sequences:
            tokens = 8
            while tokens < 2048 and seconds(prompt_of(1, 8), count, tokens) < options.seconds:
                tokens *= 2
            steps[count] = (fastest(prompt_of(1, 8), count, tokens) - fastest(prompt_of(1, 8), count, 1)) / (tokens - 1)
            count *= 2
    text = subprocess.run([pathlib.Path(options.programs) / "linnet", "info", options.file], capture_output=True,
                          text=True).stdout
    state = re.search(r"^ *state +([\d.]+) (\w?)B per sequence", text, re.M)
    if not state:
        raise InputError(f"{options.file}: linnet info does not name the size of a state; give a text model")
    fields = {"step_seconds": steps, "read_tokens_per_second": rate, "request_seconds": max(0, short - 128 / rate),
              "state_bytes": float(state[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[state[2]],
              "memory_bytes": 1e6 * options.memory, "sequences": options.sequences}
    print(json.dumps({"machines": {options.name: fields}, "date": datetime.date.today().isoformat(),
                      "command": "bench/scale.py " + " ".join(sys.argv[1:])}, indent=1))


class Replay:
    """Sends the requests of a load to a real server at their times, each from a thread of its own."""

    def __init__(self, connect, load):
        self.connect, self.load, self.start, self.threads = connect, load, time.perf_counter(), {}
        self.failed = []

    def run(self):
        for request in self.load:
            time.sleep(max(0, self.start + request.arrival - time.perf_counter()))
            thread = threading.Thread(target=self.send, args=(request, self.threads.get(id(request.before))))
            self.threads[id(request)] = thread
            thread.start()
        for thread in self.threads.values():
            thread.join()

    def send(self, request, before):
        try:
            if before:
                before.join()
            prompt = prompt_of(request.conversation, request.context)
            connection = self.connect()
            connection.connect()
            request.sent = time.perf_counter() - self.start
            answer = ask(connection, prompt, request.generated, stream=True, seed=1,
                         stream_options={"include_usage": True})
            if answer.status != 200:
                request.refused = True
                return
            for line in answer:
                if line.startswith(b'data: {"id"') and b'"usage":{' not in line:
                    request.end = time.perf_counter() - self.start
                    request.first = request.end if request.first < 0 else request.first
                elif b'"usage":{' in line:
                    usage = json.loads(line[6:])["usage"]
                    request.generated = usage["completion_tokens"]
                    request.known = usage["prompt_tokens_details"]["cached_tokens"]
            connection.close()
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            self.failed.append(str(error))


def replay(options):
    """Prints the times of a real server, those that the simulation predicts for the same requests, and their ratios."""
    options.machines, options.reuse = 1, "snapshots"
    case = Case(options, options.seeds[0])
    real, simulated = (case.load(options.rate, cold=True) for _ in range(2))
    machine = case.machine
    with serving(options, "--sequences", int(machine.sequences), "--memory", machine.memory_bytes / 1e6, "--queue",
                 int(machine.queue), "--snapshots", machine.kept_bytes / 1e6) as connect:
        ask(connect(), [5, 6, 7], 1).read()
        run = Replay(connect, real)
        run.run()
    if run.failed:
        raise InputError(f"{options.file}: {len(run.failed)} requests failed, one with: {run.failed[0]}")
    simulation = Simulation(machine, 1, "affinity", case.seed, "snapshots")
    simulation.run(simulated)
    results = [summary(load, case.seconds) for load in (real, simulated)]
    names = ("first_p50", "first_p99", "token_p50", "token_p99", "tokens_restored")
    ratios = {name: results[0][name] / results[1][name] for name in names if results[1][name]}
    print(json.dumps({"real": results[0], "simulated": results[1], "ratios": ratios}, indent=1))


def figure(options):
    """Prints an SVG: p99 of the first token against the rate of a machine, a curve for each policy."""
    curves = {}
    try:
        for line in pathlib.Path(options.results).read_text().splitlines():
            result = json.loads(line)
            name = result["policy"] + (", softmax" if result["token_bytes"] else "")
            curves.setdefault(name, []).append((result["offered_per_second"] / result["machines"], result["first_p99"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{options.results}: must have results of `simulate`, one a line ({error})")
    low, high, most = 0.5, 50.0, max((rate for curve in curves.values() for rate, _ in curve), default=1) * 1.02

    def at(rate, seconds):
        return f"{60 + 460 * rate / most:.1f},{320 - 290 * math.log(seconds / low) / math.log(high / low):.1f}"

    print('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 370" font-family="sans-serif" font-size="13">'
          '<rect width="680" height="370" fill="white"/><path d="M60,30V320H520" fill="none" stroke="#444"/>')
    for seconds in (0.5, 1, 2, 5, 10, 20, 50):
        x, y = at(0, seconds).split(",")
        print(f'<path d="M{x},{y}h460" stroke="#ddd"/>'
              f'<text x="52" y="{float(y) + 4}" text-anchor="end">{seconds:g}</text>')
    for i in range(1, int(most / 0.5) + 1):
        print(f'<text x="{at(i / 2, low).split(",")[0]}" y="338" text-anchor="middle">{i / 2:g}</text>')
    print('<text x="290" y="360" text-anchor="middle">requests a second, per machine</text>'
          '<text x="20" y="18">first token, 99th percentile, s</text>')
    for i, (name, curve) in enumerate(curves.items()):
        color = ("#888888", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#000000", "#e69f00")[i % 7]
        curve.sort()
        last = next((k for k, (_, seconds) in enumerate(curve) if seconds > high), len(curve))  # the curve leaves there
        points = " ".join(at(rate, min(max(seconds, low), high)) for rate, seconds in curve[:last + 1])
        dashes = "6,4" if "softmax" in name else "none"
        print(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dashes}"/>'
              f'<path d="M535,{45 + 24 * i}h24" stroke="{color}" stroke-width="2" stroke-dasharray="{dashes}"/>'
              f'<text x="566" y="{49 + 24 * i}">{name}</text>')
    print("</svg>")


def numbers(text):
    return [float(word) for word in text.split(",")]


def change(text):
    name, value = text.split("=")
    return name, float(value)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise InputError(f"{message}; see {self.prog} --help")


def options_of(arguments):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("figure").add_argument("results", metavar="FILE", help="results of `simulate`, one a line")
    for name in ("measure", "simulate", "search", "replay"):
        command = commands.add_parser(name)
        if name != "measure":
            add = command.add_argument
            add("trace", metavar="TRACE", help="CSV file of the trace")
            add("--record", required=True, help="file that `measure` wrote")
            add("--model", metavar="NAME", help="machine of the record (default: the first)")
            add("--set", type=change, action="append", default=[], metavar="FIELD=NUMBER",
                help="change a field of the machine, for example kept_bytes=0")
            add("--machines", type=int, default=1)
            add("--policy", choices=POLICIES, action="append", help="default: all")
            add("--share", type=float, default=0.7, help="share of requests that may continue a conversation")
            add("--message", type=float, default=100, help="mean length of a new message, in tokens")
            add("--reuse", choices=("states", "snapshots"), default="states",
                help="states: a conversation continues after its last answer; snapshots: after its last prompt")
            add("--spill", type=float, default=1.5, help="policy spill: the limit, as a multiple of the mean requests")
            add("--minutes", type=numbers, default=[24, 32], metavar="FROM,TO", help="part of the trace")
            add("--warm", type=float, default=60, help="seconds at the beginning that do not count")
            add("--shrink", type=float, default=1, help="divide the lengths of contexts and answers by this")
            add("--first", type=float, default=5, help="search: limit of the first token's p99, in seconds")
            add("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[1],
                help="one or more; search: the median rate counts")
        if name == "search":
            command.add_argument("--tolerance", type=float, default=0.02, help="of the rate (default: 0.02)")
        if name in ("simulate", "replay"):
            command.add_argument("--rate", type=float, required=True, help="requests a second, of all machines")
        if name in ("measure", "replay"):
            command.add_argument("file", metavar="MODEL", help="text model")
            command.add_argument("--programs", default="build/release/bin", help="folder of linnet")
        if name == "measure":
            command.add_argument("--name", default="machine", help="name of the machine in the record")
            command.add_argument("--sequences", type=int, default=128, help="largest number of sequences (at most 128)")
            command.add_argument("--memory", type=float, default=1000, help="memory for states, in MB")
            command.add_argument("--repeat", type=int, default=3)
            command.add_argument("--seconds", type=float, default=0.5, help="least duration of a timed answer")
    options = parser.parse_args(arguments)
    if options.command == "figure":
        return options
    if options.command == "measure":
        if not 1 <= options.sequences <= 128 or options.repeat < 1:
            raise InputError("--sequences must be in 1 .. 128, and --repeat at least 1")
        return options
    if len(options.minutes) != 2 or not 0 <= options.warm < 60 * (options.minutes[1] - options.minutes[0]):
        raise InputError("--minutes needs FROM,TO, and --warm fewer seconds than lie between them")
    if not 0 <= options.share <= 1:
        raise InputError("--share must be in 0 .. 1")
    for name in ("machines", "message", "spill", "shrink", "first", "rate"):
        if not 0 < getattr(options, name, 1) < float("inf"):
            raise InputError(f"--{name} must be above 0")
    return options


def main(arguments):
    options = options_of(arguments)
    if options.command in ("measure", "replay", "figure"):
        return {"measure": measure, "replay": replay, "figure": figure}[options.command](options)
    for policy in options.policy or POLICIES:
        results = []
        for seed in options.seeds:
            case = Case(options, seed)
            results.append(case.search(policy) if options.command == "search" else case.simulate(policy, options.rate))
        results.sort(key=lambda result: result["offered_per_second"])
        print(json.dumps(results[len(results) // 2] if options.command == "search" else results[0]), flush=True)
    return None


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        sys.exit(print(f"scale.py: {error}", file=sys.stderr) or 2)
    except BrokenPipeError:
        sys.exit(1)
