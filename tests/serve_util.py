"""For tests of `linnet serve`: a running server, and a small text model to serve.

    with Server(BIN, [COUPLET], "--sequences", 8) as server:
        status, body = server.post("/v1/couplets", {"first": "海上明月"})
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time
import unittest

MODELS = pathlib.Path(os.environ.get("LINNET_TEST_MODELS", "models")).resolve()
COUPLET = MODELS / "couplet.safetensors"

# Seconds after which a test fails. Only a server that hangs takes so long.
PATIENCE = 60


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.01)


class Server:
    """linnet serve on a free port; stopped on exit."""

    def __init__(self, programs, models, *flags, env=None):
        self.process = subprocess.Popen(
            [programs / "linnet", "serve", *map(str, models), "--port", "0", *map(str, flags)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ, **(env or {})))
        self.log = []
        self.says = self.process.stdout.readline() + self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.says)
        assert found, self.says + self.process.stderr.read()
        self.port = int(found.group(1))
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(PATIENCE)
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def get(self, path, headers=None):
        connection = self.connect()
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        result = response.status, response.read(), response.headers
        connection.close()
        return result

    def post(self, path, body, headers=None, raw=False):
        connection = self.connect()
        connection.request("POST", path, body if raw else json.dumps(body),
                           headers or {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, data

    def events(self, path, body):
        """All events of a response as (name, data), parsed as a browser does."""
        status, data = self.post(path, dict(body, stream=True))
        assert status == 200, data
        events = []
        for block in data.decode().split("\n\n")[:-1]:
            lines = block.split("\n")
            name = next((line[7:] for line in lines if line.startswith("event: ")), None)
            value = next(line[6:] for line in lines if line.startswith("data: "))
            events.append((name, value if value == "[DONE]" else json.loads(value)))
        return events

    def metric(self, name):
        text = self.get("/metrics")[1].decode()
        return sum(float(value) for value in re.findall(r"^%s(?:{[^}]*})? (\S+)$" % name, text, re.M))

    def wait_for(self, name, value):
        wait_until(lambda: self.metric(name) == value, f"{name} = {value}")

    def idle(self):
        self.wait_for("linnet_sequences_running", 0)
        self.wait_for("linnet_sequences_waiting", 0)


def train_text_model(programs):
    """Trains a byte model for long enough that it writes letters and does not end its texts. To be called from
    setUpModule(): the file is removed after the module's tests."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="linnet_serve_test."))
    unittest.addModuleCleanup(shutil.rmtree, folder)
    (folder / "words.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
    done = subprocess.run([programs / "linnet", "train", "text", "--data", folder / "words.txt", "--layers", "2",
                           "--heads", "2", "--d-model", "32", "--context", "1024", "--batch", "2", "--lr", "1e-2",
                           "--steps", "250", "--validate-every", "0", "--threads", "1", "--out", folder / "run"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder / "run" / "model.safetensors").rename(folder / "text.safetensors")
    return folder / "text.safetensors"
