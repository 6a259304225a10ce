#!/usr/bin/env python3
"""Sends random requests, right and wrong, to a running `linnet serve`: each gets an answer with a status.

    requests_test.py BIN_DIR

$LINNET_REQUESTS: their number (default: 4000). $LINNET_SEED: the seed (default: 1).
"""

import json
import os
import pathlib
import random
import socket
import sys
import tempfile
import time
import unittest

from serve_util import COUPLET, MODELS, PATIENCE, Server

COUNT, SEED = int(os.environ.get("LINNET_REQUESTS", "4000")), int(os.environ.get("LINNET_SEED", "1"))
BATCH = 50  # requests that are sent together on one connection
STATUSES = {200, 400, 404, 405, 408, 409, 411, 413, 414, 415, 417, 429, 431, 507}

SCHEMAS = [
    '{"type":"object","properties":{"b":{"type":"integer","maximum":9},"a":{"enum":["x"]}},"required":["b"]}',
    '{"$ref":"#/$defs/a","$defs":{"a":{"items":{"$ref":"#/$defs/a"},"maxItems":2}}}', '{"$ref":"#"}', '{"not":{}}',
    '{"type":"string","minLength":5,"maxLength":2}', '{"type":"string","maxLength":10000}', "true", "[]", '{"enum":[]}',
    '{"type":"array","prefixItems":[{}],"items":false}', '{"anyOf":[{"type":"null"},{"type":"boolean"}]}']
GRAMMARS = [  # as within JSON
    'root ::= [a-c]{3} | \\"x\\" root', 'root ::= root \\"a\\"', "root ::= x", 'root ::= \\"a\\"{9999}', "",
    'root ::= (\\"a\\" | \\"aa\\")* \\"b\\"', 'root ::= \\"\\"', "root ::= [^\\\\x00-\\\\x7f]+", "root ::= (((("]
ATOMS = ["null", "true", "false", "0", "-1", "1", "2", "3.5", "1e400", "NaN", "9223372036854775808", "1e308", "0.1",
         '""', '"x"', '"\\ud800"', '"\\u0000"', '"' + "é" * 50 + '"', '"' + "a" * 3000 + '"', "[]", "{}", "[null]",
         '["a","b"]', "[5,6]", "[[5],[6]]", '["a",3]', "01", "'a'", "[1,]", '{"a":1,}', '"a', "[" * 70 + "]" * 70,
         '{"type":"text"}', '{"include_usage":true}']
SAMPLING = ["temperature", "top_p", "top_k", "seed", "stream", "model"]
FIELDS = {
    "/v1/completions": ["prompt", "max_tokens", "n", "stop", "logprobs", "best_of", "logit_bias", "echo", "suffix",
                        "state", "return_state", "grammar", "response_format", "stream_options", "promt", *SAMPLING],
    "/v1/chat/completions": ["messages", "max_tokens", "max_completion_tokens", "n", "stop", "tools", "store",
                             "grammar", "response_format", "logprobs", *SAMPLING],
    "/v1/responses": ["input", "instructions", "previous_response_id", "max_output_tokens", "text", "store", "tools",
                      "metadata", "background", "truncation", *SAMPLING],
    "/v1/states": ["prompt", "state", "id", "model"],
    "/v1/couplets": ["first", "candidates", *SAMPLING]}


class Requests:
    """Makes random requests."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, share):
        return self.random.random() < share

    def schema(self):
        return self.random.choice(SCHEMAS)

    def message(self):
        role = self.random.choice(['"user"', '"assistant"', '"system"', '"tool"', "5"])
        content = self.random.choice(['"hi"', '""', '[{"type":"text","text":"a"}]', '[{"type":"image_url"}]',
                                      self.atom()])
        return f'{{"role":{role},"content":{content}}}'

    def atom(self):
        return self.random.choice(ATOMS)

    def value(self, field):
        """Mostly a value that fits the field."""
        if self.chance(0.2):
            return self.atom()
        choose = self.random.choice
        messages = f"[{','.join(self.message() for _ in range(choose([0, 1, 2, 20])))}]"
        of_schema = f'{{"type":"json_schema","name":"x","schema":{self.schema()}}}'
        values = {
            "prompt": ['"ROMEO:"', '""', "[5,6]", '["a","b"]'], "max_tokens": ["0", "1", "5"], "n": ["1", "2", "9"],
            "max_completion_tokens": ["0", "4"], "max_output_tokens": ["0", "4"], "logprobs": ["0", "2", "6"],
            "messages": [messages], "input": ['"hi"', messages],
            "first": ['"海上明月"', '"，，"', '"' + "海" * 60 + '"', '"a"'],
            "candidates": ["1", "3", "17"], "stop": ['"\\n"', '["e","a"]', '""'], "state": ['"s1"', '"s2"', '"none"'],
            "id": ['"s1"', '"s2"', '"../x"'], "return_state": ["true", "false"],
            "model": ['"text"', '"couplet"', '"nix"'],
            "grammar": [f'"{choose(GRAMMARS)}"'], "stream": ["true", "false"], "seed": ["1"], "temperature": ["0", "1"],
            "response_format": ['{"type":"json_object"}',
                                f'{{"type":"json_schema","json_schema":{{"schema":{self.schema()}}}}}'],
            "text": [f'{{"format":{of_schema}}}'], "previous_response_id": ['"resp_1"']}
        return choose(values.get(field, ATOMS))

    def body(self, path):
        fields = FIELDS[path]
        names = self.random.sample(fields, self.random.randint(0, 4))
        if self.chance(0.8) and fields[0] not in names:
            names.append(fields[0])
        limit = {"/v1/completions": "max_tokens", "/v1/chat/completions": "max_tokens",
                 "/v1/responses": "max_output_tokens"}.get(path)
        if limit and limit not in names:
            names.append(limit)  # long texts would take long
        text = ",".join(f'"{name}":{self.value(name)}' for name in names)
        body = f"{{{text}}}".encode("utf-8", "surrogatepass")
        if self.chance(0.03):
            body = body[:self.random.randrange(len(body))]
        elif self.chance(0.03):
            at = self.random.randrange(len(body))
            body = body[:at] + bytes([self.random.randrange(256)]) + body[at + 1:]
        return body

    def one(self):
        """A request whose framing is right."""
        if self.chance(0.05):
            path = self.random.choice(["/v1/states", "/v1/states/s1", "/v1/responses/x", "/healthz", "/metrics",
                                       "/v1/models", "/v1/models/nix", "/%00", "/nothing", "/v1/states/../x",
                                       "/v1/completions"])
            method = self.random.choice(["GET", "HEAD", "DELETE", "PUT", "OPTIONS"])
            return method, f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode()
        path = self.random.choice(list(FIELDS))
        body = self.body(path)
        kind = "text/plain" if self.chance(0.02) else "application/json"
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\n"
        if self.chance(0.1):
            at = self.random.randrange(len(body) + 1)
            chunks = [part for part in (body[:at], body[at:]) if part]
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in chunks) + b"0\r\n\r\n"
            return "POST", head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body
        return "POST", head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)

    def broken(self):
        """A request whose framing is wrong."""
        _, request = self.one()
        at = self.random.randrange(1, len(request))
        return self.random.choice([
            request[:at], request[:at] + os.urandom(20) + request[at:], b"\x16\x03\x01" + os.urandom(50),
            request.replace(b"Content-Length: ", b"Content-Length: +"), request.replace(b"\r\n", b"\n"),
            request.replace(b"HTTP/1.1", b"HTTP/9"), b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n"])


class Answers:
    """Reads the answers of a connection."""

    def __init__(self, connection):
        self.file = connection.makefile("rb")

    def next(self, method):
        """(status, body) of the next answer; None at the connection's end."""
        line = self.file.readline()
        if not line:
            return None
        assert line.startswith(b"HTTP/1.1 "), line
        status, fields = int(line[9:12]), {}
        while (line := self.file.readline()) != b"\r\n":
            assert line.endswith(b"\r\n"), line
            name, value = line.decode().split(":", 1)
            fields[name.lower()] = value.strip()
        body = b""
        if method == "HEAD":
            return status, fields, body
        if fields.get("transfer-encoding") == "chunked":
            while size := int(self.file.readline(), 16):
                body += self.file.read(size)
                self.file.readline()
            self.file.readline()
        else:
            body = self.file.read(int(fields["content-length"]))
        return status, fields, body


def resident(process):
    """Megabytes of a process."""
    return int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


class RandomRequests(unittest.TestCase):
    def connect(self, server):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        self.addCleanup(connection.close)
        return connection

    def reference(self, server):
        body = {"model": "text", "prompt": "ROMEO:", "max_tokens": 12, "seed": 1}
        return json.loads(server.post("/v1/completions", body)[1])["choices"]

    def check(self, method, request, answer):
        self.assertIsNotNone(answer, request)
        status, fields, body = answer
        self.assertIn(status, STATUSES, (request, body))
        if method != "HEAD" and fields.get("content-type", "").startswith("application/json"):
            json.loads(body)
        elif fields.get("content-type", "").startswith("text/event-stream"):
            self.assertTrue(body.endswith(b"\n\n"), (request, body))
        return status

    def test_each_gets_an_answer(self):
        requests, counts = Requests(SEED), {}
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            models = [f"text={MODELS / 'shakespeare.safetensors'}", f"couplet={COUPLET}"]
            with Server(BIN, models, "--quiet", "--chat", "plain", "--state-folder",
                        os.path.join(folder, "states"), "--state-folder-size", 5, "--threads", 1) as server:
                reference, sent, early, slowest = self.reference(server), 0, 0, 0
                connection = self.connect(server)
                answers = Answers(connection)
                while sent < COUNT:
                    batch = [requests.one() for _ in range(BATCH)]
                    start = time.monotonic()
                    connection.sendall(b"".join(request for _, request in batch))
                    for method, request in batch:
                        status = self.check(method, request, answers.next(method))
                        counts[status] = counts.get(status, 0) + 1
                    slowest = max(slowest, time.monotonic() - start)
                    with self.connect(server) as other:
                        broken = requests.broken()
                        other.sendall(broken)
                        other.shutdown(socket.SHUT_WR)
                        first = other.makefile("rb").readline()  # empty: the request did not end
                        self.assertRegex(first, rb"^(HTTP/1\.1 (\d{3}) .*\r\n)?$", broken)
                        if first:
                            self.assertIn(int(first[9:12]), STATUSES | {505}, broken)
                    sent += BATCH + 1
                    if sent // 2000 != (sent - BATCH - 1) // 2000:
                        self.assertEqual(self.reference(server), reference)
                    if sent <= COUNT / 4:
                        early = resident(server.process.pid)
                self.assertEqual(self.reference(server), reference)
                self.assertIsNone(server.process.poll())
                late = resident(server.process.pid)
        print(f"{sent} requests in {time.monotonic() - begun:.0f} s: {dict(sorted(counts.items()))}; the slowest "
              f"{BATCH} took {slowest:.2f} s; memory {early:.0f} MB after a quarter, {late:.0f} MB at the end")


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
