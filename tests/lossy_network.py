#!/usr/bin/env python3
"""Trains with two processes over a network that delays and loses packets, and compares with one process.

    tests/lossy_network.py BIN_DIR [--delay 0.01] [--loss 0.01] [--steps 20]

Needs root and /dev/net/tun. Makes two network namespaces, each with a TUN device; this program forwards packets between
the devices, each after `delay` seconds, and drops a share of `loss` of them. Not part of ./check: the time depends on
which packets are lost.
"""

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import pathlib
import random
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time

import processes_test

SPACES = {"linnet_lossy_a": "10.77.0.1", "linnet_lossy_b": "10.77.0.2"}
CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0001, 0x1000
libc = ctypes.CDLL(None, use_errno=True)


def enter(path):
    with open(path) as space:
        if libc.setns(space.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {path}")


def tun(space, address):
    """The file of a TUN device in a namespace."""
    enter(f"/run/netns/{space}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"lossy0", IFF_TUN | IFF_NO_PI))
    enter("/proc/1/ns/net" if os.path.exists("/proc/1/ns/net") else "/proc/self/ns/net")
    for command in (["addr", "add", f"{address}/24", "dev", "lossy0"], ["link", "set", "lossy0", "up"],
                    ["link", "set", "lo", "up"]):
        subprocess.run(["ip", "-n", space, *command], check=True)
    return device


class Network:
    """Forwards packets between the TUN devices of the namespaces."""

    def __init__(self, delay, loss):
        self.delay, self.loss = delay, loss
        self.packets = self.lost = 0
        self.over = False
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        for space in SPACES:
            subprocess.run(["ip", "netns", "add", space], check=True)
            self.stack.callback(subprocess.run, ["ip", "netns", "del", space])
        self.devices = [tun(space, address) for space, address in SPACES.items()]
        self.thread = threading.Thread(target=self.forward)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join()
        for device in self.devices:
            os.close(device)
        self.stack.close()

    def forward(self):
        chance, count, waiting = random.Random(1), itertools.count(), []
        while not self.over:
            left = waiting[0][0] - time.monotonic() if waiting else 0.1
            for device in select.select(self.devices, [], [], max(0, min(left, 0.1)))[0]:
                packet = os.read(device, 65536)
                other = self.devices[1 - self.devices.index(device)]
                self.packets += 1
                if chance.random() < self.loss:
                    self.lost += 1
                else:
                    heapq.heappush(waiting, (time.monotonic() + self.delay, next(count), other, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, other, packet = heapq.heappop(waiting)
                with contextlib.suppress(BlockingIOError):  # the queue is full: one more lost packet
                    os.write(other, packet)


def train(binary, out, *flags, spaces=(None,)):
    """Trains in a process in each of the namespaces; returns the seconds."""
    began, running = time.monotonic(), []
    for rank, space in enumerate(spaces):
        inside = ["ip", "netns", "exec", space] if space else []
        settings = {"RANK": str(rank), "WORLD_SIZE": str(len(spaces)), "MASTER_PORT": "29517",
                    "MASTER_ADDR": next(iter(SPACES.values())), "GLOO_SOCKET_IFNAME": "lossy0"}
        running.append(subprocess.Popen([*inside, binary, "train", *map(str, flags), "--out", out], text=True,
                                        stderr=subprocess.PIPE, env={**os.environ, **(settings if space else {})}))
    for process in running:
        said = process.communicate()[1]
        if process.returncode != 0:
            sys.exit(f"training failed: {said.strip().splitlines()[-1]}")
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--delay", type=float, default=0.01)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    binary = options.bin.resolve() / "linnet-train"
    compare = processes_test.ProcessesTest().assert_same_run
    with tempfile.TemporaryDirectory(prefix="linnet_lossy.") as name, Network(options.delay, options.loss) as network:
        folder = pathlib.Path(name)
        text = folder / "text.txt"
        text.write_text("".join(f"{i} times {i} is {i * i}.\n" for i in range(400)))
        flags = [*processes_test.TEXT, "--data", text, "--steps", options.steps]
        train(binary, folder / "one", *flags)
        for name, more in (("data parallel", []), ("sequence parallel", ["--sequence-parallel", 2])):
            out = folder / name.split()[0]
            seconds = train(binary, out, *flags, *more, spaces=tuple(SPACES))
            compare(folder / "one", out, 1e-4)
            print(f"{name}: as one process, after {seconds:.1f} s; {network.lost} of {network.packets} packets lost")


if __name__ == "__main__":
    main()
