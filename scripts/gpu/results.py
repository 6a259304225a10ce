#!/usr/bin/env python3
"""Compares results of scripts/gpu/check. The exit status is 1 if they differ.

    scripts/gpu/results.py losses RUN OTHER             # relative differences of the losses: at most 1e-5
    scripts/gpu/results.py varied RUN                   # no loss occurs twice
    scripts/gpu/results.py pictures A.png B.png [equal] # the share of equal bytes; with `equal`, all of them
"""

import json
import pathlib
import struct
import sys
import zlib

MAX_DIFFERENCE = 1e-5
NOT_LOSSES = ("step", "seconds", "lr", "tokens_per_second", "peak_memory")


def losses(run):
    """The losses of a training's updates, by step. A record of an update has a learning rate; its first other number
    is the loss."""
    records = map(json.loads, (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines())
    return {r["step"]: next(r[key] for key in r if key not in NOT_LOSSES) for r in records if "lr" in r}


def compare_losses(run, other):
    a, b = losses(run), losses(other)
    if not a or a.keys() != b.keys():
        sys.exit(f"steps {sorted(a)} of {run} are not those of {other}, {sorted(b)}")
    difference = max(abs(a[step] - b[step]) / abs(b[step]) for step in a)
    print(f"difference of the losses of {len(a)} updates, relative: {difference:.1e}")
    if not difference <= MAX_DIFFERENCE:
        sys.exit(f"difference {difference:.1e} exceeds {MAX_DIFFERENCE:.0e}")


def check_varied(run):
    values = list(losses(run).values())
    if not values or len(set(values)) < len(values):
        sys.exit(f"{len(set(values))} different losses in {len(values)} updates of {run}")


def pixels(path):
    """Width, height and bytes of a PNG as libpng writes it: 8 bits a channel, gray or RGB, not interlaced."""
    data, at, packed = pathlib.Path(path).read_bytes(), 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        chunk, at = data[at + 8:at + 8 + size], at + 12 + size
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", chunk)
            if depth != 8 or color not in (0, 2) or interlaced:
                sys.exit(f"{path}: not an 8-bit gray or RGB picture")
        elif kind == b"IDAT":
            packed += chunk
    channels = 3 if color == 2 else 1
    raw, stride = zlib.decompress(packed), width * channels
    above, out = bytes(stride), bytearray()
    for y in range(height):
        kind, *row = raw[y * (stride + 1):(y + 1) * (stride + 1)]
        for x in range(stride):
            left, corner = (row[x - channels], above[x - channels]) if x >= channels else (0, 0)
            base = left + above[x] - corner
            paeth = min((left, above[x], corner), key=lambda value: abs(base - value))
            row[x] = (row[x] + (0, left, above[x], (left + above[x]) // 2, paeth)[kind]) % 256
        out += bytes(row)
        above = row
    return (width, height), out


def compare_pictures(a, b, *equal):
    (size, x), (other, y) = pixels(a), pixels(b)
    if size != other:
        sys.exit(f"{a} has {size} pixels, {b} has {other}")
    same = sum(p == q for p, q in zip(x, y))
    print(f"share of equal bytes: {100 * same / len(x):.2f}%, "
          f"largest difference {max(abs(p - q) for p, q in zip(x, y))}")
    if equal and same < len(x):
        sys.exit(f"{len(x) - same} of {len(x)} bytes differ")


if __name__ == "__main__":
    command, *arguments = sys.argv[1:] or [""]
    commands = {"losses": compare_losses, "varied": check_varied, "pictures": compare_pictures}
    if command not in commands:
        sys.exit(__doc__)
    try:
        commands[command](*arguments)
    except (OSError, ValueError, StopIteration, TypeError) as error:
        sys.exit(f"scripts/gpu/results.py {command}: {error}")
