#!/usr/bin/env python3
"""End-to-end tests of linnet serve, with the shipped couplet model and a tiny text model.

    tests/serve_test.py BIN_DIR [unittest arguments]
"""

import http.client
import json
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import serve_util
from serve_util import COUPLET, PATIENCE, wait_until

BIN = pathlib.Path("build/release/bin").resolve()
TEXT = None  # trained by setUpModule


class Server(serve_util.Server):
    """A server of `models`; by default, of the couplet model and TEXT."""

    def __init__(self, *flags, models=None, env=None):
        super().__init__(BIN, (COUPLET, TEXT) if models is None else models, *flags, env=env)


def setUpModule():
    global TEXT
    TEXT = serve_util.train_text_model(BIN)


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--sequences", 8, "--queue", 16)
        cls.addClassCleanup(cls.server.__exit__)

    def refused(self, result, status, *words):
        self.assertEqual(result[0], status, result[1])
        error = json.loads(result[1])["error"]
        for word in words:
            self.assertIn(word, error["message"])

    def couplet(self, **fields):
        return self.server.post("/v1/couplets", {"first": "海上明月", "seed": 7, **fields})

    def text(self, **fields):
        return self.server.post("/v1/completions", {"prompt": "ROMEO:", "seed": 7, **fields})

    def test_says_where_it_is_and_what_it_serves(self):
        self.assertIn("couplet (POST /v1/couplets, 8 sequences)", self.server.says)
        self.assertEqual(json.loads(self.server.get("/healthz")[1]), {"status": "ok"})
        models = json.loads(self.server.get("/v1/models")[1])["data"]
        self.assertEqual([model["id"] for model in models], ["couplet", "text"])
        for model in models:
            self.assertEqual(json.loads(self.server.get(f"/v1/models/{model['id']}")[1]), model)

    def test_couplets(self):
        status, body = self.couplet(candidates=5)
        self.assertEqual(status, 200)
        result = json.loads(body)
        self.assertEqual((result["first"], result["model"], result["unknown"]), ("海上明月", "couplet", []))
        scores = [candidate["score"] for candidate in result["candidates"]]
        self.assertEqual(scores, sorted(scores, reverse=True))
        texts = [candidate["text"] for candidate in result["candidates"]]
        self.assertEqual(len(set(texts)), len(texts))
        for text in texts:
            self.assertEqual(len(text), 4)
            self.assertFalse(any(a == b for a, b in zip(text, "海上明月")))
        self.assertEqual(self.couplet(candidates=5), (status, body))
        self.assertNotEqual(self.couplet(candidates=5, seed=8)[1], body)
        # Punctuation is answered with the same mark, blanks are ignored, unknown characters are listed.
        result = json.loads(self.couplet(first="海 上，明 月；天囧地")[1])
        self.assertEqual(result["first"], "海上，明月；天囧地")
        self.assertEqual([result["candidates"][0]["text"][i] for i in (2, 5)], ["，", "；"])
        self.assertEqual(result["unknown"], ["囧"] if "囧" not in self.vocabulary() else [])

    def test_couplets_of_traditional_characters(self):
        traditional, simplified = "萬里長風，雲海蒼茫", "万里长风，云海苍茫"
        self.assertFalse((set(traditional) - set(simplified)) & set(self.vocabulary()))
        ours = json.loads(self.couplet(first=traditional, candidates=3)[1])
        self.assertEqual((ours["first"], ours["unknown"]), (traditional, []))
        self.assertEqual(ours["candidates"],
                         json.loads(self.couplet(first=simplified, candidates=3)[1])["candidates"])
        # The rules treat the traditional and the simplified form as the same character.
        text = json.loads(self.couplet(first="風来风去")[1])["candidates"][0]["text"]
        self.assertEqual(text[0], text[2])

    def vocabulary(self):
        data = COUPLET.read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        return json.loads(header["__metadata__"]["linnet"])["characters"]

    def test_streams_what_it_answers_whole(self):
        events = self.server.events("/v1/couplets", {"first": "海上明月", "seed": 7, "candidates": 5})
        written = {}
        for name, data in events:
            if name == "character":
                written[data["candidate"]] = written.get(data["candidate"], "") + data["text"]
        whole = {data["candidate"]: data["text"] for name, data in events if name == "candidate"}
        self.assertEqual(written, whole)
        self.assertEqual(sorted(whole), list(range(5)))
        self.assertEqual(events[-1][0], "done")
        self.assertEqual(events[-1][1], json.loads(self.couplet(candidates=5)[1]))

    def test_completions(self):
        status, body = self.text(max_tokens=40, n=2)
        self.assertEqual(status, 200)
        result = json.loads(body)
        self.assertEqual(result["object"], "text_completion")
        self.assertEqual([choice["index"] for choice in result["choices"]], [0, 1])
        self.assertEqual({choice["finish_reason"] for choice in result["choices"]}, {"length"})
        self.assertEqual(result["usage"]["prompt_tokens"], 6)
        self.assertEqual(result["usage"]["completion_tokens"], 80)
        texts = [choice["text"] for choice in result["choices"]]
        again = json.loads(self.text(max_tokens=40, n=2)[1])
        self.assertEqual([choice["text"] for choice in again["choices"]], texts)
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)  # too short for a snapshot
        for known in (0, 40):
            longer = json.loads(self.text(prompt="kept: " + "x" * 34, max_tokens=3)[1])
            self.assertEqual(longer["usage"]["prompt_tokens_details"]["cached_tokens"], known)
        events = self.server.events("/v1/completions", {"prompt": "ROMEO:", "seed": 7, "max_tokens": 40, "n": 2,
                                                        "stream_options": {"include_usage": True}})
        self.assertEqual(events[-1][1], "[DONE]")
        self.assertEqual(events[-2][1]["usage"]["completion_tokens"], 80)
        streamed = ["", ""]
        for _, data in events[:-2]:
            for choice in data["choices"]:
                streamed[choice["index"]] += choice["text"]
        self.assertEqual(streamed, texts)
        # The same text as `linnet generate`.
        written = subprocess.run([BIN / "linnet", "generate", TEXT, "--prompt", "ROMEO:", "--seed", "7",
                                  "--max-tokens", "40"], capture_output=True, text=True)
        self.assertIn(texts[0], written.stdout, written.stderr)

    def test_completions_of_several_prompts(self):
        prompts = ["the quick", "over", ""]
        alone = [json.loads(self.text(prompt=prompt, max_tokens=20, n=2)[1]) for prompt in prompts]
        together = json.loads(self.text(prompt=prompts, max_tokens=20, n=2)[1])
        self.assertEqual([choice["index"] for choice in together["choices"]], list(range(6)))
        self.assertEqual([choice["text"] for choice in together["choices"]],
                         [choice["text"] for answer in alone for choice in answer["choices"]])
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            self.assertEqual(together["usage"][name], sum(answer["usage"][name] for answer in alone), name)
        # Byte b is token b + 3.
        tokens = [[b + 3 for b in prompt.encode()] for prompt in prompts]
        self.assertEqual(json.loads(self.text(prompt=tokens, max_tokens=20, n=2)[1])["choices"], together["choices"])
        cold = {"prompt": tokens[0], "max_tokens": 20, "n": 2, "temperature": 0.3}  # so low that the text is ASCII
        plain = json.loads(self.text(**cold)[1])["choices"]
        for choice, same in zip(json.loads(self.text(**cold, logprobs=1)[1])["choices"], plain):
            self.assertEqual(choice["text"], same["text"])
            logprobs = choice["logprobs"]
            self.assertEqual("".join(logprobs["tokens"]), choice["text"])
            self.assertEqual(logprobs["text_offset"], list(range(20)))
            for token, value, top in zip(*(logprobs[key] for key in ("tokens", "token_logprobs", "top_logprobs"))):
                self.assertEqual(top[token], value)
                self.assertLessEqual(value, max(top.values()))
                self.assertLessEqual(sum(math.exp(value) for value in top.values()), 1 + 1e-5)

    def test_stops_where_it_is_told_to(self):
        whole = json.loads(self.text(max_tokens=200)[1])["choices"][0]["text"]
        stop = re.search(r"[ -~]{3}", whole[60:]).group()
        result = json.loads(self.text(max_tokens=200, stop=[stop, "\x00never"])[1])["choices"][0]
        self.assertEqual(result["text"], whole[:whole.index(stop)])
        self.assertEqual(result["finish_reason"], "stop")
        self.assertEqual(json.loads(self.text(max_tokens=0)[1])["choices"][0]["text"], "")
        # Only text beyond the training length comes with a warning.
        self.assertNotIn("warning", json.loads(self.text(max_tokens=40)[1]))
        self.assertIn("trained on 1024 positions", json.loads(self.text(max_tokens=1100, temperature=0)[1])["warning"])
        greedy = [json.loads(self.text(max_tokens=30, temperature=0, seed=seed)[1])["choices"][0]["text"]
                  for seed in (1, 2)]
        self.assertEqual(greedy[0], greedy[1])

    def test_refuses_with_a_reason(self):
        for fields, words in (({"first": ""}, ["empty"]), ({"first": 3}, ["string"]),
                              ({"first": "海" * 2000}, ["exceeds"]), ({"first": "a\x07b"}, ["control"]),
                              ({"candidates": 0}, ["candidates"]), ({"candidates": 1e9}, ["candidates"]),
                              ({"candidates": 1.5}, ["whole"]), ({"temperature": -1}, ["temperature"]),
                              ({"temperature": "hot"}, ["number"]), ({"top_p": 2}, ["top_p"]),
                              ({"seed": -1}, ["seed"]), ({"stream": 1}, ["true"]),
                              ({"sed": 1}, ["sed", "seed"])):
            self.refused(self.couplet(**fields), 400, *words)
        # An unknown field is reported before other errors, with a suggestion or the known fields.
        for path, body, message in (
                ("/v1/couplets", {"frist": "海"}, "unknown field 'frist'; did you mean 'first'?"),
                ("/v1/completions", {"max_token": 5, "temperature": -1},
                 "unknown field 'max_token'; did you mean 'max_tokens'?"),
                ("/v1/completions", {"stream_options": {"include_usages": True}},
                 "unknown field 'include_usages'; did you mean 'include_usage'?"),
                ("/v1/couplets", {"first": "海", "x": 1},
                 "unknown field 'x'; the fields are 'first', 'candidates', 'temperature', 'top_k', 'top_p', 'seed', "
                 "'stream', 'model'")):
            self.refused(self.server.post(path, body), 400)
            self.assertEqual(json.loads(self.server.post(path, body)[1])["error"]["message"], message)
        self.refused(self.server.post("/v1/couplets", {}), 400, "first")
        self.refused(self.server.post("/v1/couplets", []), 400, "object")
        self.refused(self.couplet(model="none"), 404, "none")
        self.refused(self.couplet(model="coulpet"), 404, "did you mean 'couplet'?")
        self.refused(self.server.get("/v1/models/txt"), 404, "no model 'txt'; did you mean 'text'?")
        self.refused(self.couplet(model="text"), 404, "text")
        for fields, words in (({"prompt": ["a", 3]}, ["prompt"]), ({"max_tokens": 1 << 40}, ["max_tokens"]),
                              ({"echo": True}, ["echo"]), ({"logprobs": 6}, ["logprobs"]),
                              ({"prompt": ["a"] * 100, "n": 2}, ["prompt", "most"]),
                              ({"suffix": "x"}, ["suffix"]), ({"stop": [1]}, ["stop"]), ({"n": 1000}, ["n"])):
            self.refused(self.text(**fields), 400, *words)
        post = self.server.post
        as_json = {"Content-Type": "application/json"}
        self.refused(post("/v1/couplets", "{", as_json, raw=True), 400, "JSON")
        self.refused(post("/v1/couplets", b'{"first": "\xff\xfe"}', as_json, raw=True), 400)
        self.refused(post("/v1/couplets", '{"first": "\\ud800"}', as_json, raw=True), 400)
        self.refused(post("/v1/couplets", '{"first": "a", "first": "b"}', as_json, raw=True), 400, "twice")
        self.refused(post("/v1/couplets", "[" * 100_000, as_json, raw=True), 400)
        self.refused(post("/v1/couplets", '{"first": "a"}', {"Content-Type": "text/plain"}, raw=True), 415)
        self.refused(post("/v1/couplets", b"x" * (2 << 20), as_json, raw=True), 413)
        self.refused(post("/nothing", {}), 404)
        for method, path, allow in (("GET", "/v1/couplets", "POST"), ("POST", "/healthz", "GET, HEAD")):
            connection = self.server.connect()
            connection.request(method, path)
            response = connection.getresponse()
            self.assertEqual((response.status, response.headers["Allow"]), (405, allow))
            connection.close()
        self.assertEqual(self.server.get("/" + "a" * 10_000)[0], 414)
        self.assertEqual(self.couplet()[0], 200)

    def test_chunked_bodies_are_bounded_too(self):
        connection = self.server.connect()
        connection.putrequest("POST", "/v1/couplets")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.putheader("Content-Type", "application/json")
        connection.endheaders()
        try:
            for _ in range(100):
                connection.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            connection.send(b"0\r\n\r\n")
            self.assertEqual(connection.getresponse().status, 413)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server stopped reading, which is fine
        connection.close()
        self.assertEqual(self.couplet()[0], 200)

    def raw(self, data, seconds=10):
        """Sends these bytes; returns all data until the server closes or is silent for `seconds`."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=seconds) as connection:
            answer = b""
            try:
                connection.sendall(data)
                while piece := connection.recv(65536):
                    answer += piece
            except (TimeoutError, ConnectionResetError, BrokenPipeError):
                pass
            return answer

    def test_bodies_that_are_not_read_end_the_connection(self):
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        head = b"POST /v1/couplets HTTP/1.1\r\nHost: x\r\n"
        for rest, status in ((b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                              + chunk * 20 + b"0\r\n\r\n", b"413"),
                             (b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 5\r\n\r\n--x--",
                              b"415"),
                             (b"Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 5"
                              b"\r\n\r\nabcde", b"400")):
            answer = self.raw(head + rest, seconds=2)
            if answer:  # empty if the connection was reset while sending
                self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer[:2000])
                self.assertTrue(answer.startswith(b"HTTP/1.1 " + status), answer[:200])
        for method in ("PUT", "DELETE", "OPTIONS"):
            connection = self.server.connect()
            connection.request(method, "/v1/couplets")
            self.assertEqual(connection.getresponse().status, 405, method)
            connection.close()

    def test_leaving_the_queue_frees_it(self):
        long = {"prompt": "A", "max_tokens": 1000, "n": 8, "temperature": 0}
        running = self.server.connect()
        running.request("POST", "/v1/completions", json.dumps(dict(long, stream=True)),
                        {"Content-Type": "application/json"})
        response = running.getresponse()
        waiting = [self.server.connect() for _ in range(2)]
        for connection in waiting:
            connection.request("POST", "/v1/completions", json.dumps(long), {"Content-Type": "application/json"})
        self.server.wait_for("linnet_sequences_waiting", 16)
        for connection in waiting:
            connection.close()
        self.server.wait_for("linnet_sequences_waiting", 0)
        response.close()
        running.close()
        self.server.idle()

    def test_what_is_no_request_is_refused(self):
        post = b"POST /v1/couplets HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        for sent, status in ((b"\x00" * 1000 + b"\r\n\r\n", 400), (b"GET\r\n\r\n", 400),
                             (b"GET / HTTP/9.9\r\n\r\n", 400), (b"\xff\xfe\r\n\r\n", 400),
                             (post + b"Content-Length: -5\r\n\r\n", 400),
                             (post + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
                             (post + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
                             (b"GET /" + b"a" * 10_000, 414), (b"GET / HTTP/1.1\r\nHost: " + b"x" * 40_000, 431),
                             (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n", 431)):
            answer = self.raw(sent + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head, _, body = answer.partition(b"\r\n\r\n")
            self.assertEqual(int(head.split()[1]), status, sent[:100])
            self.assertIn(b"Connection: close", head)
            self.assertEqual(json.loads(body)["error"]["code"], status)
        self.assertEqual(self.couplet()[0], 200)

    def test_pipelined_requests_are_answered_in_order(self):
        def request(seed, close=False):
            body = json.dumps({"first": "海上明月", "seed": seed, "stream": seed == 2}).encode()
            return (b"POST /v1/couplets HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    + (b"Connection: close\r\n" if close else b"") + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answers = self.raw(b"".join(request(seed, close=seed == 4) for seed in range(5)), PATIENCE)
        self.assertEqual(answers.count(b"HTTP/1.1 200 OK\r\n"), 5, answers)
        at = 0
        for seed in range(5):
            at = answers.index(self.couplet(seed=seed)[1].strip(), at) + 1

    def test_many_at_once_get_what_one_alone_gets(self):
        alone = {seed: self.couplet(seed=seed, candidates=2)[1] for seed in range(8)}
        results, refused = [], []

        def ask(start):
            for i in range(12):
                seed = (start + i) % 8
                while True:
                    status, body = self.couplet(seed=seed, candidates=2)
                    if status != 429:
                        break
                    refused.append(body)
                    time.sleep(0.01)
                results.append((seed, status, body))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 16 * 12)
        for seed, status, body in results:
            self.assertEqual(status, 200)
            self.assertEqual(body, alone[seed])
        self.assertGreater(len(refused), 0)  # up to 32 sequences at once: 8 run, 16 wait, the rest is refused
        self.refused((429, refused[0]), 429, "try again")
        self.server.idle()

    def test_a_client_that_leaves_frees_its_place(self):
        # 512 sequences of 1000 tokens, eight at a time: most have not begun when the clients leave.
        requests, n, tokens = 64, 8, 1000
        body = {"prompt": "A", "max_tokens": tokens, "n": n}
        with Server("--sequences", 8, "--queue", requests * n, models=[TEXT]) as server:
            for stream in (True, False):
                before = server.metric("linnet_tokens_generated_total")
                connections = [server.connect() for _ in range(requests)]
                for connection in connections:
                    connection.request("POST", "/v1/completions", json.dumps(dict(body, stream=stream)),
                                       {"Content-Type": "application/json"})
                if stream:
                    with connections[0].getresponse() as response:
                        self.assertEqual(response.status, 200)
                        self.assertIn(b"data: ", response.read1(50))
                server.wait_for("linnet_sequences_running", 8)
                for connection in connections:
                    connection.sock.shutdown(socket.SHUT_RDWR)
                    connection.close()
                server.idle()
                self.assertLess(server.metric("linnet_tokens_generated_total") - before, requests * n * tokens / 2)

    def test_a_slow_reader_holds_up_nobody(self):
        slow = socket.create_connection(("127.0.0.1", self.server.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        body = json.dumps({"prompt": "A", "max_tokens": 1000, "stream": True})
        slow.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                      f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
        for _ in range(20):
            self.assertEqual(self.couplet()[0], 200)
        slow.close()
        self.server.idle()

    def test_idle_connections_hold_up_nobody(self):
        idle = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(1000)]
        for connection in idle[:300]:
            connection.sendall(b"POST /v1/couplets HTTP/1.1\r\nContent-")  # incomplete
        self.assertEqual(self.couplet()[0], 200)
        for connection in idle:
            connection.close()
        self.assertEqual(self.couplet()[0], 200)

    def test_metrics_and_pages(self):
        self.couplet()
        wait_until(lambda: self.server.metric("linnet_requests_total") > 0, "the request in the metrics")
        text = self.server.get("/metrics")[1].decode()
        for name in ("linnet_requests_total", "linnet_request_seconds_bucket", "linnet_sequences_capacity",
                     "process_resident_memory_bytes"):
            self.assertIn("\n" + name, text)
        for line in text.splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) \S+ .+|[a-z_]+(\{[^{}]*\})? [-+.eE0-9]+|)$')
        status, page, headers = self.server.get("/")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        for path in re.findall(r'(?:src|href)="(/[^"]+)"', page.decode()):
            self.assertEqual(self.server.get(path)[0], 200, path)
        self.assertNotRegex(page.decode(), r'(?:src|href)="https?:')
        wait_until(lambda: any("POST /v1/couplets 200" in line for line in self.server.log), "a line in the log")


class LifeTest(unittest.TestCase):
    def test_finishes_what_runs_and_refuses_the_rest(self):
        with Server() as server:
            connection = server.connect()
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": "A", "max_tokens": 1000, "n": 16, "stream": True}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read1(20)
            other = server.connect()
            other.request("GET", "/healthz")
            other.getresponse().read()
            server.process.send_signal(signal.SIGTERM)

            def refused():
                other.request("POST", "/v1/couplets", '{"first": "a"}', {"Content-Type": "application/json"})
                with other.getresponse() as answer:
                    answer.read()
                    self.assertIn(answer.status, (200, 503))
                    return answer.status == 503
            wait_until(refused, "status 503 after SIGTERM")
            self.assertTrue(response.read().endswith(b"data: [DONE]\n\n"))
            connection.close()
            other.close()
            self.assertEqual(server.process.wait(PATIENCE), 0)

    def test_opens_its_models_again(self):
        with tempfile.TemporaryDirectory(prefix="linnet_serve_test.") as folder:
            path = pathlib.Path(folder, "play.safetensors")
            os.symlink(TEXT, path)
            with Server(models=[f"play={path}"]) as server:
                connection = server.connect()
                connection.request("POST", "/v1/completions", json.dumps(
                    {"prompt": "A", "max_tokens": 1000, "n": 16, "stream": True}), {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read1(20)
                os.remove(path)
                os.symlink(COUPLET, path)  # of another task, so other paths are served
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: server.post("/v1/couplets", {"first": "海上明月"})[0] == 200,
                           "couplets after SIGHUP")
                self.assertEqual(server.post("/v1/completions", {"prompt": "A"})[0], 404)
                self.assertTrue(response.read().endswith(b"data: [DONE]\n\n"))
                connection.close()
                wait_until(lambda: any("reloaded: serving play" in line for line in server.log), "the line in the log")
                os.remove(path)
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: any("not reloaded" in line for line in server.log), "the line in the log")
                self.assertEqual(server.post("/v1/couplets", {"first": "海上明月"})[0], 200)

    def test_ends_at_once_when_it_must(self):
        body = json.dumps({"first": "海上生明月天涯共此时" * 6, "candidates": 16}).encode()
        # With --grace 0 the first signal ends the server; otherwise the second does, within the grace period.
        for grace in (0, 10 * PATIENCE):
            with Server("--grace", grace, "--sequences", 16, models=[COUPLET]) as server:
                def ask():
                    try:
                        server.post("/v1/couplets", body, raw=True)
                    except (http.client.HTTPException, OSError):
                        pass
                threads = [threading.Thread(target=ask) for _ in range(8)]
                dribbling = socket.create_connection(("127.0.0.1", server.port))
                dribbling.sendall(b"GET /healthz HTTP/1.1\r\nA")
                server.process.send_signal(signal.SIGUSR1)  # the server must ignore it
                for thread in threads:
                    thread.start()
                wait_until(lambda: server.metric("linnet_sequences_running") > 0, "a sequence runs")
                server.process.send_signal(signal.SIGTERM)
                if grace > 0:
                    def ended():
                        server.process.send_signal(signal.SIGTERM)
                        return server.process.poll() is not None
                    wait_until(ended, "the end at another SIGTERM")
                self.assertIn(server.process.wait(PATIENCE), (0, 128 + signal.SIGTERM))
                for thread in threads:
                    thread.join()
                dribbling.close()

    def test_a_key_guards_what_computes(self):
        with Server(models=[COUPLET], env={"LINNET_API_KEY": "secret"}) as server:
            self.assertIn("API key", server.says)
            self.assertEqual(server.get("/healthz")[0], 200)
            self.assertEqual(server.get("/")[0], 200)
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                for path in ("/metrics", "/v1/models", "/v1/models/couplet", "/v1/models/none"):
                    self.assertEqual(server.get(path, headers)[0], 401, path)
                self.assertEqual(server.post("/v1/couplets", {"first": "海"},
                                             {"Content-Type": "application/json", **headers})[0], 401)
            self.assertEqual(server.get("/metrics", {"Authorization": "Bearer secret"})[0], 200)
            # The server reads a refused request to its end, so the connection can be used again.
            connection = server.connect()
            for headers, status in (({}, 401), ({"Authorization": "Bearer secret"}, 200)) * 2:
                connection.request("POST", "/v1/couplets", b'{"first": "abc"}',
                                   {"Content-Type": "application/json", **headers})
                response = connection.getresponse()
                response.read()
                self.assertEqual(response.status, status)
            connection.close()

    def test_snapshots_outlive_a_kill(self):
        with tempfile.TemporaryDirectory(prefix="linnet_serve_test.") as folder:
            prompt = "".join(chr(97 + i * 7 % 26) + (" " if i % 5 == 4 else "") for i in range(750))
            request = {"prompt": prompt, "max_tokens": 20, "seed": 1}
            flags = ["--snapshot-folder", folder]
            with Server(*flags, models=[TEXT]) as server:
                cold = json.loads(server.post("/v1/completions", request)[1])
                warm = json.loads(server.post("/v1/completions", request)[1])
                wait_until(lambda: len(list(pathlib.Path(folder).glob("*.state"))) == 8, "eight snapshot files")
                server.process.kill()
            (pathlib.Path(folder) / "garbage.state").write_bytes(b"no state")
            with Server(*flags, models=[TEXT]) as server:
                again = json.loads(server.post("/v1/completions", request)[1])
            cached = [result["usage"]["prompt_tokens_details"]["cached_tokens"] for result in (cold, warm, again)]
            self.assertEqual((cached[0], cached[1]), (0, len(prompt)))
            self.assertGreaterEqual(cached[2], 896)
            self.assertEqual(cold["choices"], warm["choices"])
            self.assertEqual(cold["choices"], again["choices"])

    def test_refuses_to_start(self):
        def start(*args, code=2, env=None):
            done = subprocess.run([BIN / "linnet", "serve", *map(str, args)], capture_output=True, text=True,
                                  timeout=60, env=dict(os.environ, **(env or {})))
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            return done.stderr
        self.assertIn("no such", start("nothing.safetensors").lower())
        self.assertIn("can be served", start(pathlib.Path("models/digits.safetensors")))
        self.assertIn("name", start(COUPLET, COUPLET))
        self.assertIn("do not fit", start(COUPLET, "--memory", 1, "--sequences", 1000))
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.assertIn("--port", start(COUPLET, "--port", taken.getsockname()[1]))
        self.assertIn("folder", start(COUPLET, "--snapshot-folder", "/proc/none"))
        with tempfile.TemporaryDirectory(prefix="linnet_serve_test.") as folder:
            odd = pathlib.Path(folder) / 'a"b.safetensors'
            odd.symlink_to(COUPLET)
            self.assertIn("name=", start(odd))
            key = pathlib.Path(folder) / "key"
            key.write_text(" \n")
            self.assertIn("no key", start(COUPLET, "--api-key-file", key))
            key.write_text("one\ntwo\n")
            self.assertIn("visible ASCII", start(COUPLET, "--api-key-file", key))
        self.assertIn("LINNET_API_KEY is empty", start(COUPLET, env={"LINNET_API_KEY": ""}))
        self.assertIn("no key", start(COUPLET, env={"LINNET_API_KEY": " "}))
        for key in ("one\ntwo", "one two", "ключ", "\ufeffone"):
            self.assertIn("visible ASCII", start(COUPLET, env={"LINNET_API_KEY": key}))
        self.assertIn("at most 4096", start(COUPLET, env={"LINNET_API_KEY": "a" * 5000}))
        self.assertIn("no chat format ''", start(COUPLET, "--chat", ""))

    def test_without_arguments_the_shipped_models(self):
        with Server(models=[]) as server:
            self.assertIn("couplet", server.says)

    def test_the_benchmark_checks_and_times(self):
        done = subprocess.run([BIN / "linnet", "bench", "serve", COUPLET, "--clients", "2", "--candidates", "1",
                               "--seconds", "0.1", "--json"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads(done.stdout)[0]
        self.assertTrue(record["checked"])
        self.assertEqual((record["clients"], record["candidates"]), (2, 1))
        self.assertGreaterEqual(record["requests"], 2)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
