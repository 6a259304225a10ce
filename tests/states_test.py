#!/usr/bin/env python3
"""Kills servers again and again while clients continue conversations from kept states.

    tests/states_test.py BIN_DIR [unittest arguments]

LINNET_STATES_SECONDS (default 6) is the duration, LINNET_STATES_CLIENTS (default 8) the number of clients,
LINNET_STATES_SERVERS (default 2) the number of servers that share a folder of states, and LINNET_STATES_KILL (default
1.5) the seconds between kills. The answers of a conversation come from all servers in turn. Every state that was
acknowledged must be there after each restart and continue as the uninterrupted text does, and every answer must be
right.
"""

import http.client
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import unittest

import serve_util
from serve_util import PATIENCE

BIN = pathlib.Path("build/release/bin").resolve()
SECONDS = float(os.environ.get("LINNET_STATES_SECONDS", 6))
CLIENTS = int(os.environ.get("LINNET_STATES_CLIENTS", 8))
SERVERS = int(os.environ.get("LINNET_STATES_SERVERS", 2))
KILL = float(os.environ.get("LINNET_STATES_KILL", 1.5))
STEP, STEPS = 12, 6  # tokens of an answer, and answers of a conversation
MOST = 1000  # states that are kept; when there are more, a conversation's states are removed at its end


class Load:
    """Clients that hold conversations with servers that are killed and started again."""

    def __init__(self, folder):
        self.model = serve_util.MODELS / "shakespeare.safetensors"
        self.flags = ["--state-folder", folder, "--state-folder-size", 2000, "--threads", 1, "--quiet"]
        self.servers = [self.start() for _ in range(SERVERS)]
        self.expected = [self.text(f"Act {i}. Enter the king.", STEP * STEPS) for i in range(CLIENTS)]
        self.faults, self.kept, self.kills, self.answers = [], {}, 0, 0
        self.lock = threading.Lock()
        self.over = time.monotonic() + SECONDS

    def start(self):
        return serve_util.Server(BIN, [self.model], *self.flags)

    def post(self, body, at=0):
        status, data = self.servers[at % SERVERS].post("/v1/completions", {"temperature": 0, **body})
        return status, json.loads(data)

    def text(self, prompt, tokens):
        return self.post({"prompt": prompt, "max_tokens": tokens})[1]["choices"][0]["text"]

    def ask(self, body, at):
        """The choice of server `at`, once it answers; a killed server's request is sent again."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                status, answer = self.post(body, at)
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
                continue
            assert status == 200, (body, answer)
            return answer["choices"][0]

    def remove(self, names, at):
        with self.lock:
            for name in names:
                del self.kept[name]
        for name in names:
            try:
                connection = self.servers[at % SERVERS].connect()
                connection.request("DELETE", f"/v1/states/{name}")
                connection.getresponse().read()
                connection.close()
            except (OSError, http.client.HTTPException):
                pass  # killed meanwhile: the state may be removed or not

    def client(self, i):
        try:
            while time.monotonic() < self.over:
                body, names = {"prompt": f"Act {i}. Enter the king."}, []
                for step in range(STEPS):
                    choice = self.ask({**body, "max_tokens": STEP, "return_state": True}, i + step)
                    want = self.expected[i][step * STEP:(step + 1) * STEP]
                    with self.lock:
                        self.answers += 1
                        self.kept[choice["state"]] = (i, step + 1)
                        names.append(choice["state"])
                    assert choice["text"] == want, (i, step, choice, want)
                    body = {"state": choice["state"]}
                if len(self.kept) > MOST:
                    self.remove(names, i)
        except BaseException as error:
            self.faults.append(repr(error))

    def run(self):
        clients = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]
        for client in clients:
            client.start()
        sizes = []
        while time.monotonic() < self.over:
            time.sleep(min(KILL, max(0.1, self.over - time.monotonic())))
            at = self.kills % SERVERS
            sizes.append(self.servers[at].metric("process_resident_memory_bytes"))
            self.servers[at].process.kill()
            self.servers[at].__exit__()
            self.kills += 1
            self.servers[at] = self.start()
        for client in clients:
            client.join()
        return sizes


class States(unittest.TestCase):
    def test_acknowledged_states_outlive_kills(self):
        with tempfile.TemporaryDirectory(prefix="linnet_states_test.") as folder:
            load = Load(folder)
            self.addCleanup(lambda: [server.__exit__() for server in load.servers])
            sizes = load.run()
            self.assertEqual(load.faults, [])
            self.assertGreater(load.kills, 1)
            for server in load.servers:
                listed = {state["id"] for state in json.loads(server.get("/v1/states")[1])["data"]}
                self.assertEqual(set(load.kept) - listed, set())
            for name, (i, step) in list(load.kept.items())[::max(1, len(load.kept) // 100)]:
                if step < STEPS:
                    text = load.ask({"state": name, "max_tokens": STEP}, step)["text"]
                    self.assertEqual(text, load.expected[i][step * STEP:(step + 1) * STEP])
            print(f"{load.kills} kills, {load.answers} answers, {len(load.kept)} states acknowledged, "
                  f"{len(listed)} kept, memory before the kills {min(sizes) / 1e6:.0f} to {max(sizes) / 1e6:.0f} MB")


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
