#!/usr/bin/env python3
"""Causal linear attention in plain PyTorch, in chunks: a baseline for the CUDA kernels.

    scripts/gpu/plain_chunks.py [--batch 16] [--heads 8] [--n 4096] [--dim 32] [--precision bf16]

Libraries without a kernel compute the attention in this form: products within chunks of 64
positions, and a running sum of the chunks' states between them. Prints JSON records like those of
`linnet bench causal-linear --device cuda`: milliseconds of the forward pass, and of both passes.
"""

import argparse
import json
import sys

import torch

CHUNK = 64


def attention(q, k, v, fused):
    """Returns [N, H, L, M] for q, k [N, H, L, D] and v [N, H, L, M]; fused: with elu + 1 and the division."""
    if fused:
        q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    n, h, length, d = q.shape
    q, k, v = (x.reshape(n, h, length // CHUNK, CHUNK, -1) for x in (q, k, v))
    states = k.transpose(-1, -2) @ v
    before = torch.cumsum(states.float(), 2) - states.float()
    weights = torch.tril(q @ k.transpose(-1, -2))
    out = (weights @ v + q @ before.to(q.dtype)).reshape(n, h, length, -1)
    return out[..., :-1] / (out[..., -1:] + 1e-6) if fused else out


def milliseconds(body):
    for _ in range(3):
        body()
    times = []
    for _ in range(7):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(5):
            body()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 5)
    return sorted(times)[len(times) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="bf16")
    args = parser.parse_args()
    if args.n % CHUNK:
        parser.error(f"--n must be a multiple of {CHUNK}")
    if not torch.cuda.is_available():
        parser.error("there is no GPU")
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    shape = (args.batch, args.heads, args.n, args.dim)
    q, k, v, grad = (torch.rand(shape, device="cuda", dtype=dtype) * 2 - 1 for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()

    def compiled_or_plain():
        yield "plain", attention
        try:
            compiled = torch.compile(attention)
            compiled(q, k, v, True)
            yield "compiled", compiled
        except Exception as error:  # torch.compile does not work here
            print(f"torch.compile: {str(error).splitlines()[0][:100]}", file=sys.stderr)

    records = []
    for name, form in compiled_or_plain():
        for fused in (False, True):
            def forward():
                with torch.no_grad():
                    form(q, k, v, fused)

            def both():
                form(q, k, v, fused).backward(grad)

            for what, body in (("forward", forward), ("forward+backward", both)):
                records.append({
                    "name": f"pytorch-{name}/{'fused' if fused else 'bare'}/{what}", "value": milliseconds(body),
                    "unit": "ms", "N": args.n, "batch": args.batch, "heads": args.heads, "dim": args.dim,
                    "precision": args.precision, "device": torch.cuda.get_device_name(), "torch": torch.__version__})
    print(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
