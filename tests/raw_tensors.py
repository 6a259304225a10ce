"""The tensors of safetensors files, for tests that compare them byte by byte."""

import hashlib
import json
import struct


class RawBytes(bytes):
    """Bytes that a failed comparison shows in short."""

    def __repr__(self):
        return f"{len(self)} bytes, sha256 {hashlib.sha256(self).hexdigest()}"


def tensors(path):
    """Returns {name: RawBytes}."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    header.pop("__metadata__")
    return {name: RawBytes(data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]]) for name, t in header.items()}
