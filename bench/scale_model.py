"""A simulation of machines that run `linnet serve` behind a load balancer, for bench/scale.py.

    machine = Machine.load("record.json")
    trace = read_trace("trace.csv")
    before = form_conversations(trace, share=0.7, message=100, seed=1)
    load = make_load(trace, before, factor=2, window=(0, 600), seed=1)
    simulation = Simulation(machine, count=10, policy="affinity", seed=1)
    simulation.run(load)      # fills in the times of the requests

Times are in seconds. Everything is deterministic, given the seeds.
"""

import bisect
import collections
import csv
import dataclasses
import datetime
import heapq
import json
import math
import pathlib
import random

PIECE, CUT = 128, 32  # as Scheduler::kPiece and Engine::kCutPositions
POLICIES = ("random", "least", "shared", "affinity", "spill")


class InputError(Exception):
    """A bad file or option. The program prints one line and ends with status 2."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine: measured times and bytes, and the limits that its operator sets."""
    step_seconds: dict            # {number of sequences: seconds of a step}
    read_tokens_per_second: float
    request_seconds: float        # time of a request that reads nothing and draws one token
    state_bytes: float
    memory_bytes: float           # for the states of running sequences
    sequences: int                # maximum number of running sequences
    queue: int = 256              # maximum number of waiting requests
    kept_bytes: float = 2e9       # for the states of conversations between their requests
    round_tokens: int = 512       # maximum number of prompt tokens read between two steps
    token_bytes: float = 0        # growth of the state with each token: the cache of a softmax model
    cache_bytes_per_second: float = 16e9   # rate at which a step reads such caches
    link_bytes_per_second: float = 1.25e9  # network, for states that move
    link_seconds: float = 0.001

    @staticmethod
    def load(path, name=None, changes=()):
        """Reads a machine from a record: a JSON object {"machines": {name: fields}}. Without `name`, the first one.
        `changes` are (field, number). Throws InputError."""
        try:
            machines = dict(json.loads(pathlib.Path(path).read_text())["machines"])
            fields = dict(machines[name or next(iter(machines))])
            steps = {int(count): float(seconds) for count, seconds in fields.pop("step_seconds").items()}
            known = {field.name for field in dataclasses.fields(Machine)}
            values = {field: float(value) for field, value in fields.items() if field in known}
            values.update(changes)
            if unknown := set(values) - known:
                raise InputError(f"--set: a machine has no field {min(unknown)}; it has {', '.join(sorted(known))}")
            machine = Machine(step_seconds=dict(sorted(steps.items())), **values)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); `bench/scale.py measure` writes records")
        except (KeyError, StopIteration) as error:
            raise InputError(f"{path}: no machine or field {error}; `bench/scale.py measure` writes records")
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: not a record ({error}); `bench/scale.py measure` writes records")
        positive = [*steps.values(), machine.read_tokens_per_second, machine.link_bytes_per_second,
                    machine.cache_bytes_per_second, machine.sequences, machine.round_tokens]
        if min(steps, default=0) != 1 or not all(0 < value < math.inf for value in positive) or \
                not all(0 <= getattr(machine, field) < math.inf for field in values):
            raise InputError(f"{path}: steps must begin with 1 sequence, and times, rates and sizes be positive")
        if machine.bytes_of(1) > machine.memory_bytes:
            raise InputError(f"{path}: no state fits into memory_bytes")
        return machine

    def bytes_of(self, tokens):
        return self.state_bytes + self.token_bytes * tokens

    def capacity(self):
        """Maximum number of sequences that run together, if all states have a constant size."""
        fitting = self.memory_bytes // self.state_bytes if self.state_bytes else math.inf
        return int(min(self.sequences, fitting))

    def steps(self):
        """A list: entry b has the seconds of a step of b sequences; interpolated, and extrapolated from the last two
        measurements."""
        counts = list(self.step_seconds)
        table = [0.0] * (int(self.sequences) + 1)
        for b in range(1, len(table)):
            right = min(max(bisect.bisect_left(counts, b), 1), len(counts) - 1)
            low, high = counts[max(right - 1, 0)], counts[right]
            share = (b - low) / (high - low) if high > low else 0
            table[b] = self.step_seconds[low] * (1 - share) + self.step_seconds[high] * share
        return table


@dataclasses.dataclass(slots=True)
class Request:
    arrival: float
    context: int
    generated: int
    conversation: int
    before: object = None   # the conversation's previous request
    known: int = 0          # tokens that need not be read
    sent: float = -1.0
    first: float = -1.0
    end: float = -1.0
    refused: bool = False
    next: object = None     # waits for this request's answer


def read_trace(path):
    """Returns [(seconds, context tokens, generated tokens)], in order of time. Throws InputError."""
    try:
        with open(path, newline="") as file:
            rows = [(datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(), int(row["ContextTokens"]),
                     int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); docs/scale.md says where to download the trace")
    except (KeyError, ValueError, TypeError):
        raise InputError(f"{path}: must be CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens")
    if not rows or min(min(row[1:]) for row in rows) < 1:
        raise InputError(f"{path}: needs at least one request, with at least one token read and generated")
    rows.sort(key=lambda row: row[0])
    return [(seconds - rows[0][0], context, generated) for seconds, context, generated in rows]


def form_conversations(trace, share, message, seed, most_seconds=600.0):
    """Returns for each request the index of the previous one of its conversation, or -1. The trace has no
    conversations: this is an assumption. A request is a candidate for continuing one with probability `share`. It draws
    the length of its new message (exponential, mean `message`) and continues the open conversation whose length comes
    closest from below to its context without that message; if there is none, it begins a conversation. A conversation
    is open from 10 s + 0.1 s for each generated token after its last request until `most_seconds` later."""
    rng = random.Random(seed)
    before, ready, opened, closing = [-1] * len(trace), [], [], collections.deque()
    for i, (now, context, generated) in enumerate(trace):
        while ready and ready[0][0] <= now:
            at, j = heapq.heappop(ready)
            bisect.insort(opened, (trace[j][1] + trace[j][2], j))
            closing.append((at + most_seconds, j))
        while closing and closing[0][0] < now:
            j = closing.popleft()[1]
            k = bisect.bisect_left(opened, (trace[j][1] + trace[j][2], j))
            if k < len(opened) and opened[k][1] == j:
                opened.pop(k)
        if rng.random() < share:
            longest = context - max(1, round(rng.expovariate(1 / message)))
            k = bisect.bisect_left(opened, (longest + 1, -1)) - 1
            if k >= 0:
                before[i] = opened.pop(k)[1]
        heapq.heappush(ready, (now + 10 + 0.1 * generated, i))
    return before


def make_load(trace, before, factor, window, seed, shrink=1.0, cold=False):
    """Returns the requests of `window` = (from, to) seconds, at `factor` times the trace's rate. Whole copies of the
    trace are shifted by up to 30 s each way; the last copy keeps a share of the conversations. A request's `before` may
    lie before the window: its answer has then ended, and its state is kept, unless `cold`."""
    begin, end = window
    conversation = []
    for i, j in enumerate(before):
        conversation.append(i if j < 0 else conversation[j])
    rng, load = random.Random(f"load {seed}"), []
    for copy in range(math.ceil(factor)):
        shift = rng.uniform(-30, 30) if factor > 1 else 0.0
        kept = [rng.random() < factor - copy for _ in trace] if factor - copy < 1 else None
        low, high = (bisect.bisect_left(trace, (at - shift,)) for at in (begin, end))
        made = {}
        for i in range(low, high):
            if kept and not kept[conversation[i]]:
                continue
            made[i] = request_of(trace, i, copy * len(trace) + conversation[i], shift - begin, shrink)
            j = before[i]
            if j >= 0 and not (cold and j not in made):
                made[i].before = made.get(j) or request_of(trace, j, made[i].conversation, -math.inf, shrink)
        load.extend(made.values())
    load.sort(key=lambda request: request.arrival)
    return load


def request_of(trace, i, conversation, shift, shrink):
    seconds, context, generated = trace[i]
    return Request(seconds + shift, max(1, math.ceil(context / shrink)), max(1, math.ceil(generated / shrink)),
                   conversation)


class Server:
    """linnet serve on one machine. Plans the rounds of its scheduler (Scheduler::Run): a round reads at most
    `round_tokens` tokens of prompts, in pieces of 128 in turn, and then steps each generating sequence by a token.
    Rounds without prompts are planned together until the first sequence ends; an arrival cuts the plan short."""

    def __init__(self, machine, steps, number):
        self.machine, self.steps, self.number = machine, steps, number
        self.generating = []                  # heap of (round of the last token, order, request)
        self.reading = collections.deque()    # [request, tokens left]
        self.waiting = collections.deque()
        self.rounds = self.order = 0          # rounds done; order of requests
        self.open = 0                         # requests sent here that have not ended
        self.version = 0                      # of the plan; an event of an older plan is void
        self.planned = None                   # (first step begins, seconds of a step, number of steps)
        self.used = 0.0                       # bytes of running sequences
        self.cached = 0                       # tokens in the caches of running sequences
        self.kept, self.kept_bytes = collections.OrderedDict(), 0.0  # {conversation: tokens}, oldest first
        self.link_free = self.busy = 0.0

    def full(self):
        """Whether a further request gets status 429."""
        running = len(self.generating) + len(self.reading)
        free = 0 if self.machine.token_bytes else self.machine.capacity() - running
        return self.open - running - free >= self.machine.queue

    def keep(self, conversation, tokens):
        """Keeps a conversation's state; drops those used longest ago if the memory is full."""
        self.forget(conversation)
        self.kept[conversation] = tokens
        self.kept_bytes += self.machine.bytes_of(tokens)
        while self.kept_bytes > self.machine.kept_bytes and self.kept:
            self.forget(next(iter(self.kept)))

    def forget(self, conversation):
        tokens = self.kept.pop(conversation, None)
        if tokens is not None:
            self.kept_bytes -= self.machine.bytes_of(tokens)
        return tokens or 0

    def admit(self):
        while self.waiting and len(self.generating) + len(self.reading) < self.machine.sequences:
            request = self.waiting[0]
            need = self.machine.bytes_of(request.context + request.generated)
            if self.used + need > self.machine.memory_bytes:
                return
            self.used += need
            self.cached += request.context
            self.reading.append([self.waiting.popleft(), request.context - request.known])

    def plan(self, now, ended):
        """Plans the next rounds from `now`. Calls ended(request, seconds) for requests of one token. Returns when the
        plan is done, or None if there is nothing to do."""
        self.admit()
        if not self.reading and not self.generating:
            self.planned = None
            return None
        machine, at, budget, freed = self.machine, now, self.machine.round_tokens, False
        while self.reading and budget > 0:
            entry = self.reading.popleft()
            piece = min(PIECE, entry[1], budget)
            budget -= piece
            entry[1] -= piece
            at += piece / machine.read_tokens_per_second
            if entry[1] > 0:
                self.reading.append(entry)
                continue
            at += machine.request_seconds
            request = entry[0]
            request.first = at
            if request.generated == 1:
                self.leave(request, at, ended)
                freed = True
            else:
                self.order += 1
                heapq.heappush(self.generating, (self.rounds + request.generated - 1, self.order, request))
        count = 0
        step = 0.0
        if self.generating:
            count = 1 if self.reading or freed else self.generating[0][0] - self.rounds
            step = self.steps[len(self.generating)]
            if machine.token_bytes:  # caches grow during the plan; their mean length counts
                tokens = self.cached + count * len(self.generating) / 2
                step += tokens * machine.token_bytes / machine.cache_bytes_per_second
        self.planned = (at, step, count)
        self.busy += at - now + step * count
        return at + step * count

    def cut(self, now):
        """A request has arrived: the plan ends with the current round. Returns when, or None if it does anyway."""
        at, step, count = self.planned
        rounds = min(count, max(1, math.ceil((now - at) / step))) if step else count
        if rounds == count:
            return None
        self.busy -= (count - rounds) * step
        self.planned = (at, step, rounds)
        return at + rounds * step

    def done(self, now, ended):
        """The plan is done: ends the requests that have their last token."""
        count = self.planned[2]
        self.rounds += count
        self.cached += count * len(self.generating)
        while self.generating and self.generating[0][0] <= self.rounds:
            self.leave(heapq.heappop(self.generating)[2], now, ended)

    def leave(self, request, now, ended):
        request.end = now
        self.used -= self.machine.bytes_of(request.context + request.generated)
        self.cached -= request.context + request.generated - 1
        ended(request, now, self)


class Simulation:
    """Servers, a balancer with a policy, and the requests of make_load(). run() fills in the requests' times.

    random    any server; nothing is shared, so every request reads its whole context
    least     the server with the fewest requests; nothing is shared
    shared    the server with the fewest requests; states are in a store that all servers read over their network
    affinity  the server that the conversation's number (a hash) names; its kept states are restored
    spill     as affinity; if that server is full, or has more than `spill` times the mean number of requests, the one
              with the fewest, to which the state moves
    """

    def __init__(self, machine, count, policy, seed, reuse="states", spill=1.5, bound=math.inf):
        self.machine, self.policy, self.reuse, self.spill, self.bound = machine, policy, reuse, spill, bound
        steps = machine.steps()
        self.servers = [Server(machine, steps, i) for i in range(count)]
        self.by_load = [{server: None for server in self.servers}]  # [requests]: the servers that have as many
        self.open = self.moved_bytes = self.moves = self.spilled = 0
        self.refused = self.late = 0  # late: first token after more than `bound` seconds
        self.homes, self.store, self.rng = {}, {}, random.Random(f"balancer {seed}")
        self.events, self.order = [], 0

    def count_request(self, server, change):
        """Adds a request to a server or removes one, and keeps by_load up to date."""
        del self.by_load[server.open][server]
        server.open += change
        self.open += change
        if server.open == len(self.by_load):
            self.by_load.append({})
        self.by_load[server.open][server] = None

    def least_loaded(self):
        return next(iter(next(servers for servers in self.by_load if servers)))

    def home(self, conversation):
        if conversation not in self.homes:
            self.homes[conversation] = self.rng.choice(self.servers)
        return self.homes[conversation]

    def tokens_kept(self, request):
        """Tokens of the state that is kept after a request: all (kept states), or the prompt up to a multiple of 32
        (snapshots)."""
        return request.context + request.generated if self.reuse == "states" else request.context // CUT * CUT

    def choose(self, request):
        """Returns the server for a request, the tokens that its state holds, and the bytes that must move."""
        if self.policy == "random":
            return self.rng.choice(self.servers), 0, 0
        if self.policy == "least":
            return self.least_loaded(), 0, 0
        if self.policy == "shared":
            tokens = self.store.get(request.conversation, 0)
            return self.least_loaded(), tokens, self.machine.bytes_of(tokens) if tokens else 0
        server = self.home(request.conversation)
        if self.policy == "spill" and (server.full() or
                                       server.open > math.ceil(self.spill * (self.open + 1) / len(self.servers))):
            other = self.least_loaded()
            if other is not server:
                tokens = server.forget(request.conversation)
                self.homes[request.conversation] = other
                self.spilled += 1
                return other, tokens, self.machine.bytes_of(tokens) if tokens else 0
        return server, server.kept.get(request.conversation, 0), 0

    def push(self, at, kind, item, version=0):
        self.order += 1
        heapq.heappush(self.events, (at, self.order, kind, item, version))

    def send(self, request, now):
        if request.before and request.before.end < 0 and not request.before.refused and \
                request.before.arrival > -math.inf:
            request.before.next = request  # a client reads the answer before it goes on
            return
        request.sent, request.before = now, None
        server, tokens, moving = self.choose(request)
        fits = self.machine.bytes_of(request.context + request.generated) <= self.machine.memory_bytes
        if server.full() or not fits:
            request.refused = True
            self.refused += 1
            return
        request.known = min(tokens, request.context)
        self.count_request(server, 1)
        if moving:
            self.moves += 1
            self.moved_bytes += moving
            server.link_free = max(now, server.link_free) + moving / self.machine.link_bytes_per_second
            self.push(server.link_free + self.machine.link_seconds, "ready", (server, request))
        else:
            self.ready(server, request, now)

    def ready(self, server, request, now):
        server.waiting.append(request)
        if server.planned is None:
            self.plan(server, now)
        elif (at := server.cut(now)) is not None:
            server.version += 1
            self.push(at, "done", server, server.version)

    def plan(self, server, now):
        at = server.plan(now, self.ended)
        if at is not None:
            server.version += 1
            self.push(at, "done", server, server.version)

    def ended(self, request, now, server):
        self.count_request(server, -1)
        self.late += request.first - request.sent > self.bound
        tokens = self.tokens_kept(request)
        if self.policy == "shared":
            self.store[request.conversation] = tokens
            self.moved_bytes += self.machine.bytes_of(tokens)  # to the store
        elif self.policy in ("affinity", "spill"):
            server.keep(request.conversation, tokens)
        if request.next:
            self.push(max(now, request.next.arrival), "send", request.next)
            request.next = None

    def run(self, load, give_up=False):
        """Runs until all requests have ended. With `give_up`, stops as soon as one is refused or 1% are late, and
        returns False."""
        for request in load:  # states from before the window
            if request.before and request.before.arrival == -math.inf:
                tokens = self.tokens_kept(request.before)
                if self.policy == "shared":
                    self.store[request.conversation] = tokens
                elif self.policy in ("affinity", "spill"):
                    self.home(request.conversation).keep(request.conversation, tokens)
        arrivals, events = 0, self.events
        while arrivals < len(load) or events:
            if not events or arrivals < len(load) and load[arrivals].arrival <= events[0][0]:
                self.send(load[arrivals], load[arrivals].arrival)
                arrivals += 1
                if give_up and (self.refused or self.late > 0.01 * len(load)):
                    return False
                continue
            now, _, kind, item, version = heapq.heappop(events)
            if kind == "done":
                if version == item.version:
                    item.done(now, self.ended)
                    self.plan(item, now)
            elif kind == "ready":
                self.ready(*item, now)
            else:
                self.send(item, now)
        return True
