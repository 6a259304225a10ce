#!/usr/bin/env python3
"""Compares torch.ops.linnet (python/) with plain PyTorch, and runs the example of python/README.md.

    tests/python_ops_test.py LIBRARY TORCH_VERSION [unittest arguments]

Needs a Python with the PyTorch that the library was built with: this one, or Debian's (package
python3-torch). If neither has it, the test prints a message and exits with 77.
"""

import copy
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import warnings

SOURCE = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = 77


def python_with_torch(version):
    """The path of a Python whose PyTorch has this major and minor version and loads LIBRARY, or None."""
    script = f"import torch; print(torch.__version__); torch.ops.load_library({str(LIBRARY)!r})"
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        try:
            done = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        if done.stdout.split(".")[:2] == version.split(".")[:2]:
            return python
    return None


if __name__ == "__main__":
    LIBRARY, VERSION = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    if "LINNET_PYTHON_FOUND" not in os.environ:
        PYTHON = python_with_torch(VERSION)
        if PYTHON is None:
            print(f"skipped: no Python here has PyTorch {VERSION}; on Debian, install python3-torch")
            sys.exit(SKIPPED)
        os.execve(PYTHON, [PYTHON, *sys.argv], {**os.environ, "LINNET_PYTHON_FOUND": "1"})
    del sys.argv[1:3]

import torch  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402

linnet = torch.ops.linnet


def phi(x, feature_map):
    return torch.nn.functional.elu(x) + 1 if feature_map == "elu" else x


def reference(q, k, v, s=None, z=None, lengths=None, feature_map="elu", normalize=True, eps=1e-6):
    """(out, s, z), computed from the scores of all pairs of positions."""
    length = q.shape[1]
    q, k = phi(q, feature_map), phi(k, feature_map)
    if lengths is not None:
        seen = (torch.arange(length) < lengths[:, None])[:, :, None, None]
        k, v = torch.where(seen, k, torch.zeros_like(k)), torch.where(seen, v, torch.zeros_like(v))
    scores = torch.einsum("nlhd,nshd->nhls", q, k).tril()
    out = torch.einsum("nhls,nshm->nlhm", scores, v)
    if s is not None:
        out = out + torch.einsum("nlhd,nhdm->nlhm", q, s)
    s_after = torch.einsum("nlhd,nlhm->nhdm", k, v) + (0 if s is None else s)
    if not normalize:
        return out, s_after, z
    z_after = k.sum(1) + (0 if z is None else z)
    denominator = scores.sum(-1).transpose(1, 2) + eps
    if z is not None:
        denominator = denominator + torch.einsum("nlhd,nhd->nlh", q, z)
    return out / denominator[..., None], s_after, z_after


def random(*shapes, dtype=torch.float32):
    return [torch.randn(shape, dtype=torch.double).to(dtype) for shape in shapes]


def leaves(tensors, dtype=None):
    return [t.detach().to(dtype or t.dtype).clone().requires_grad_() for t in tensors]


def gradients(results, inputs, seed=3):
    """Gradients of a fixed random weighted sum of all results."""
    generator = torch.Generator().manual_seed(seed)
    loss = sum((r.double() * torch.randn(r.shape, generator=generator, dtype=torch.double)).sum()
               for r in results if r is not None and r.requires_grad)
    return torch.autograd.grad(loss, inputs)


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(7)

    def near(self, got, want, tolerance=1e-5):
        self.assertEqual(got.shape, want.shape)
        off = (got.double() - want.double()).abs().max() / want.double().abs().max().clamp(min=1e-6)
        self.assertLess(float(off), tolerance)

    def all_near(self, got, want, tolerance=1e-5):
        self.assertEqual(len(got), len(want))
        for g, w in zip(got, want):
            self.near(g, w, tolerance)

    def same(self, got, want):
        self.assertTrue(torch.equal(got, want))

    def refuses(self, text, run):
        with self.assertRaisesRegex(RuntimeError, text):
            run()


class Numbers(Case):
    def test_against_plain_pytorch(self):
        for n, l, h, d, m in ((1, 1, 1, 1, 1), (2, 7, 3, 4, 5), (2, 130, 2, 32, 32), (3, 65, 1, 20, 33)):
            for options in ({}, {"normalize": False}, {"eps": 0.5}, {"feature_map": "identity"},
                            {"lengths": torch.arange(n) * l // max(n - 1, 1)}):
                x = random((n, l, h, d), (n, l, h, d), (n, l, h, m))
                if options.get("feature_map") == "identity":
                    x[:2] = [t.abs() for t in x[:2]]  # else the denominator may be near 0
                for dtype, tolerance in ((torch.float32, 3e-5), (torch.double, 1e-10)):
                    with self.subTest(shape=(n, l, h, d, m), dtype=dtype, **options):
                        ours, theirs = leaves(x, dtype), leaves(x, torch.double)
                        out = linnet.causal_linear_attention(*ours, **options)
                        want = reference(*theirs, **options)[0]
                        self.assertEqual(out.dtype, dtype)
                        self.near(out, want, tolerance)
                        if l > 1:  # with one position, gradients of q and k are 0 up to rounding
                            self.all_near(gradients([out], ours), gradients([want], theirs), tolerance)

    def test_gradcheck_in_double(self):
        x = leaves(random((2, 5, 2, 3), (2, 5, 2, 3), (2, 5, 2, 2), dtype=torch.double))
        state = leaves(random((2, 2, 3, 2), (2, 2, 3), dtype=torch.double))
        state[1] = (state[1].detach().abs() + 1).requires_grad_()
        lengths = torch.tensor([2, 5])
        for options in ({}, {"lengths": lengths}, {"normalize": False}):
            self.assertTrue(torch.autograd.gradcheck(
                lambda *t: linnet.causal_linear_attention(*t, **options), x))
            self.assertTrue(torch.autograd.gradcheck(
                lambda *t: linnet.causal_linear_attention_state(*t, **options)[:2], x + state))
        self.assertTrue(torch.autograd.gradcheck(
            lambda *t: linnet.causal_linear_attention_state(*t), x + state))
        self.assertTrue(torch.autograd.gradgradcheck(linnet.causal_linear_attention, x))
        rows = leaves([t.detach()[0] for t in x])
        cu_seqlens = torch.tensor([0, 2, 5])
        self.assertTrue(torch.autograd.gradcheck(
            lambda q, k, v, s, z: linnet.causal_linear_attention_packed_state(q, k, v, cu_seqlens, s, z),
            rows + state))
        self.assertTrue(torch.autograd.gradgradcheck(
            lambda q, k, v: linnet.causal_linear_attention_packed(q, k, v, cu_seqlens), rows))

    def test_second_derivatives_in_fp32(self):
        x = random((2, 20, 2, 8), (2, 20, 2, 8), (2, 20, 2, 8))

        def second(inputs, run):
            first = torch.autograd.grad(run(*inputs).square().sum(), inputs, create_graph=True)
            return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

        self.all_near(second(leaves(x), linnet.causal_linear_attention),
                      second(leaves(x, torch.double), lambda *t: reference(*t)[0]), 1e-4)

    def test_one_gradient_of_several_results(self):
        """A loss on one of out, s and z: the other two have no incoming gradient and add nothing."""
        x, state = random((2, 9, 2, 4), (2, 9, 2, 4), (2, 9, 2, 3)), random((2, 2, 4, 3), (2, 2, 4))
        state[1] = state[1].abs() + 1
        for dtype in (torch.float32, torch.double):
            for i in range(3):
                ours, theirs = leaves(x + state, dtype), leaves(x + state, torch.double)
                got = torch.autograd.grad(
                    linnet.causal_linear_attention_state(*ours)[i].square().sum(), ours, allow_unused=True)
                want = torch.autograd.grad(reference(*theirs)[i].square().sum(), theirs, allow_unused=True)
                for g, w, t in zip(got, want, theirs):
                    self.near(g, torch.zeros_like(t) if w is None else w)

    def test_any_strides(self):
        base = random((2, 3, 40, 8), (2, 40, 8, 3), (40, 6, 2))
        for dtype in (torch.float32, torch.double):
            q, k, v = leaves(base, dtype)
            views = (q.transpose(1, 2), k.permute(0, 1, 3, 2), v.permute(2, 0, 1).unflatten(2, (3, 2)))
            self.assertFalse(any(t.is_contiguous() for t in views))
            dense = [t.contiguous() for t in views]
            lengths = torch.tensor([30, 0, 40, 0])[::2]
            self.assertFalse(lengths.is_contiguous())
            got = linnet.causal_linear_attention(*views, lengths=lengths)
            want = linnet.causal_linear_attention(*dense, lengths=lengths.contiguous())
            self.same(got, want)
            for g, w in zip(gradients([got], (q, k, v)), gradients([want], (q, k, v))):
                self.near(g, w, 1e-6)
            one = leaves(random((1, 1, 1, 8)), dtype)[0]
            self.near(linnet.causal_linear_attention(one.expand(2, 9, 3, 8), one.expand(2, 9, 3, 8),
                                                     one.expand(2, 9, 3, 8)), one.expand(2, 9, 3, 8))

    def test_masked_rows_may_hold_anything(self):
        lengths = torch.tensor([0, 3])
        masked = torch.arange(10) >= lengths[:, None]
        for dtype in (torch.float32, torch.double):
            q, k, v = random((2, 10, 2, 5), (2, 10, 2, 5), (2, 10, 2, 3), dtype=dtype)
            k[masked], v[masked] = float("nan"), float("nan")
            x = leaves([q, k, v])
            out = linnet.causal_linear_attention(*x, lengths=lengths, eps=0.0)
            for t in (out, *gradients([out], x)):
                self.assertTrue(torch.isfinite(t).all())
                self.assertEqual(float(t[0].detach().abs().max()), 0)

    def test_empty_inputs(self):
        x = leaves(random((0, 9, 3, 4), (0, 9, 3, 4), (0, 9, 3, 5)))
        out = linnet.causal_linear_attention(*x)
        self.assertEqual(out.shape, (0, 9, 3, 5))
        out.sum().backward()
        self.assertEqual(x[0].grad.shape, x[0].shape)
        rows = random((0, 3, 4), (0, 3, 4), (0, 3, 5))
        out, s, z = linnet.causal_linear_attention_packed_state(*rows, torch.zeros(3, dtype=torch.int64))
        self.assertEqual((out.shape, s.shape, z.shape), ((0, 3, 5), (2, 3, 4, 5), (2, 3, 4)))


class States(Case):
    def test_pieces_equal_the_whole(self):
        x = random((2, 90, 3, 8), (2, 90, 3, 8), (2, 90, 3, 10))
        lengths = torch.tensor([50, 90])
        for dtype, tolerance in ((torch.float32, 3e-5), (torch.double, 1e-10)):
            for normalize in (True, False):
                whole, pieces = leaves(x, dtype), leaves(x, dtype)
                want = linnet.causal_linear_attention_state(*whole, lengths=lengths, normalize=normalize)
                s = z = None
                outs, begin = [], 0
                for end in (1, 30, 64, 90):
                    out, s, z = linnet.causal_linear_attention_state(
                        *(t[:, begin:end] for t in pieces), s, z,
                        lengths=(lengths - begin).clamp(0, end - begin), normalize=normalize)
                    outs.append(out)
                    begin = end
                got = (torch.cat(outs, 1), s, z)
                self.all_near(got, want, tolerance)
                self.all_near(gradients(got, pieces), gradients(want, whole), tolerance)

    def test_given_states(self):
        x = random((2, 9, 3, 4), (2, 9, 3, 4), (2, 9, 3, 5))
        s, z = random((2, 3, 4, 5), (2, 3, 4))
        z = z.abs() + 1
        ours, theirs = leaves([*x, s, z]), leaves([*x, s, z], torch.double)
        got = linnet.causal_linear_attention_state(*ours)
        want = reference(*theirs)
        self.all_near(got, want)
        self.all_near(gradients(got, ours), gradients(want, theirs))
        self.same(ours[3].detach(), s)  # the input state is not modified
        self.same(ours[4].detach(), z)
        _, _, after = linnet.causal_linear_attention_state(*x, s, z, normalize=False)
        self.same(after, z)
        _, _, after = linnet.causal_linear_attention_state(*x, normalize=False)
        self.same(after, torch.zeros(2, 3, 4))

    def test_steps_equal_the_whole(self):
        x = random((2, 12, 3, 4), (2, 12, 3, 4), (2, 12, 3, 5))
        for dtype, tolerance in ((torch.float32, 3e-5), (torch.double, 1e-10)):
            for normalize in (True, False):
                whole, steps = leaves(x, dtype), leaves(x, dtype)
                want = linnet.causal_linear_attention_state(*whole, normalize=normalize)
                s = z = None
                outs = []
                for q, k, v in zip(*(t.unbind(1) for t in steps)):
                    out, s, z = linnet.causal_linear_step(q, k, v, s, z, normalize=normalize)
                    outs.append(out)
                got = (torch.stack(outs, 1), s, z)
                self.all_near(got, want, tolerance)
                self.all_near(gradients(got, steps), gradients(want, whole), tolerance)

    def test_a_state_forks(self):
        first, a, b = (random((1, 6, 2, 4), (1, 6, 2, 4), (1, 6, 2, 4)) for _ in range(3))
        _, s, z = linnet.causal_linear_attention_state(*first)
        for piece in (a, b):
            whole = [torch.cat(pair, 1) for pair in zip(first, piece)]
            self.near(linnet.causal_linear_attention_state(*piece, s, z)[0],
                      linnet.causal_linear_attention(*whole)[:, 6:])

    def test_packed_equals_separate(self):
        cu_seqlens = torch.tensor([0, 0, 70, 71, 71, 120, 120])
        x, state = random((120, 3, 8), (120, 3, 8), (120, 3, 5)), random((6, 3, 8, 5), (6, 3, 8))
        state[1] = state[1].abs() + 1
        for dtype in (torch.float32, torch.double):
            packed, alone = leaves(x + state, dtype), leaves(x + state, dtype)
            got = linnet.causal_linear_attention_packed_state(*packed[:3], cu_seqlens, *packed[3:])
            q, k, v, s, z = alone
            outs, states = [], []
            for n, (begin, end) in enumerate(zip(cu_seqlens, cu_seqlens[1:])):
                one = (s[n:n + 1], z[n:n + 1])
                if end > begin:
                    out, *one = linnet.causal_linear_attention_state(
                        *(t[begin:end][None] for t in (q, k, v)), *one)
                    outs.append(out[0])
                states.append(one)
            want = (torch.cat(outs), *(torch.cat(t) for t in zip(*states)))
            for g, w in zip((*got, *gradients(got, packed)), (*want, *gradients(want, alone))):
                self.same(g, w)
            self.near(linnet.causal_linear_attention_packed(*packed[:3], cu_seqlens)[71:],
                      linnet.causal_linear_attention(*(t[None, 71:] for t in alone[:3]))[0])


class Types(Case):
    def test_half_precision(self):
        x = random((2, 300, 2, 8), (2, 300, 2, 8), (2, 300, 2, 8))
        for dtype, epsilon in ((torch.bfloat16, 2 ** -8), (torch.float16, 2 ** -11)):
            half = leaves(x, dtype)
            exact = leaves(half, torch.double)
            out, s, z = linnet.causal_linear_attention_state(*half)
            want = reference(*exact)
            self.assertEqual((out.dtype, s.dtype, z.dtype), (dtype, torch.float32, torch.float32))
            self.near(out, want[0], 2 * epsilon)  # rounded once, at the end
            self.near(s, want[1])  # the state is not rounded to `dtype`
            for g, w in zip(gradients([out], half), gradients([want[0]], exact)):
                self.assertEqual(g.dtype, dtype)
                self.near(g, w, 4 * epsilon)
            step, s, z = linnet.causal_linear_step(*(t[:, 0] for t in half), s, z)
            self.assertEqual((step.dtype, s.dtype), (dtype, torch.float32))
            # Accepts a state in half precision.
            linnet.causal_linear_step(*(t[:, 0] for t in half), s.to(dtype), z.to(dtype))

    def test_autocast(self):
        x = random((2, 300, 2, 8), (2, 300, 2, 8), (2, 300, 2, 8))
        lengths = torch.tensor([200, 300])
        fp32, state = linnet.causal_linear_attention(*x, lengths=lengths), None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours = leaves(x)
            out = linnet.causal_linear_attention(*ours, lengths=lengths)
            self.assertEqual(out.dtype, torch.bfloat16)
            self.same(out, fp32.to(torch.bfloat16))  # computed in fp32
            mixed = [ours[0], ours[1].to(torch.bfloat16), ours[2]]
            out, *state = linnet.causal_linear_attention_state(*mixed, lengths=lengths)
            self.assertEqual([t.dtype for t in (out, *state)],
                             [torch.bfloat16, torch.float32, torch.float32])
            out, *state = linnet.causal_linear_step(*(t[:, 0] for t in mixed), *state)
            self.assertEqual([t.dtype for t in (out, *state)],
                             [torch.bfloat16, torch.float32, torch.float32])
            packed = linnet.causal_linear_attention_packed(*(t[0] for t in ours), torch.tensor([0, 9, 300]))
            self.assertEqual(packed.dtype, torch.bfloat16)
            # In double, the backward pass runs PyTorch's operations, which autocast must not cast.
            double = leaves(x, torch.double)
            out = linnet.causal_linear_attention(*double)
            self.assertEqual(out.dtype, torch.double)
            got = torch.autograd.grad(out.square().sum(), double)
        want = leaves(x, torch.double)
        self.all_near(got, torch.autograd.grad(reference(*want)[0].square().sum(), want), 1e-10)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = linnet.causal_linear_attention(*ours)
        grads = torch.autograd.grad(out.float().sum(), ours)
        self.assertEqual({g.dtype for g in grads}, {torch.float32})
        # Autocast must not cast anything in second derivatives either.
        ours = leaves(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, s, _ = linnet.causal_linear_attention_state(*ours)
            got = torch.autograd.grad(s.square().sum(), ours[1:], create_graph=True)
        self.all_near(got, torch.autograd.grad(reference(*want)[1].square().sum(), want[1:]))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            self.assertEqual(linnet.causal_linear_attention(*ours).dtype, torch.float32)

    def test_without_gradients(self):
        x = leaves(random((2, 9, 3, 4), (2, 9, 3, 4), (2, 9, 3, 5)))
        want = linnet.causal_linear_attention(*x).detach()
        for guard in (torch.no_grad, torch.inference_mode):
            with guard():
                out, s, z = linnet.causal_linear_attention_state(*x)
                self.assertFalse(out.requires_grad or s.requires_grad or z.requires_grad)
                self.same(out, want)
        # Only k requires a gradient.
        out = linnet.causal_linear_attention(x[0].detach(), x[1], x[2].detach())
        self.near(torch.autograd.grad(out.sum(), x[1])[0],
                  torch.autograd.grad(linnet.causal_linear_attention(*x).sum(), x[1])[0])


class Tracing(Case):
    TYPES = (torch.float32, torch.double, torch.bfloat16)

    def expect(self, tensors, shapes, dtypes):
        self.assertEqual([tuple(t.shape) for t in tensors], shapes)
        self.assertEqual([t.dtype for t in tensors], dtypes)

    def run_all(self, make, where):
        """Runs every operation forward and backward on make(tensor), and calls where() to check each result."""
        x = random((2, 9, 3, 4), (2, 9, 3, 4), (2, 9, 3, 5))
        shapes = [(2, 3, 4, 5), (2, 3, 4)]
        for dtype in self.TYPES:
            state_type = torch.float32 if dtype == torch.bfloat16 else dtype
            types = [dtype, state_type, state_type]
            q, k, v = (make(t.to(dtype)).requires_grad_() for t in x)
            s, z = (make(torch.zeros(shape, dtype=state_type)).requires_grad_() for shape in shapes)
            lengths, cu_seqlens = make(torch.tensor([4, 9])), make(torch.tensor([0, 4, 9]))
            rows = [t[0].detach().requires_grad_() for t in (q, k, v)]
            last = [t[:, 0].detach().requires_grad_() for t in (q, k, v)]
            for results, out_shape, inputs in (
                    (linnet.causal_linear_attention_state(q, k, v, s, z, lengths=lengths), (2, 9, 3, 5),
                     [q, k, v, s, z]),
                    (linnet.causal_linear_attention_packed_state(*rows, cu_seqlens, s, z), (9, 3, 5),
                     [*rows, s, z]),
                    (linnet.causal_linear_step(*last, s, z), (2, 3, 5), [*last, s, z])):
                self.expect(results, [out_shape, *shapes], types)
                grads = torch.autograd.grad(sum(r.sum() for r in results), inputs)
                self.expect(grads, [tuple(t.shape) for t in inputs], [t.dtype for t in inputs])
                for t in (*results, *grads):
                    where(t)
            self.expect([linnet.causal_linear_attention(q, k, v),
                         linnet.causal_linear_attention_packed(*rows, cu_seqlens)],
                        [(2, 9, 3, 5), (9, 3, 5)], [dtype, dtype])

    def test_fake_tensors(self):
        mode = FakeTensorMode()

        def is_fake(t):
            self.assertIsInstance(t, torch._subclasses.FakeTensor)
            self.assertEqual(t.device.type, "cpu")

        self.run_all(mode.from_tensor, is_fake)
        fake = [mode.from_tensor(t) for t in random((2, 9, 3, 4), (2, 9, 3, 4), (2, 9, 3, 5))]
        fake = [t.requires_grad_() for t in fake]
        with mode:
            out = linnet.causal_linear_attention(*fake)
            out.sum().backward()
            self.assertEqual(fake[2].grad.shape, fake[2].shape)
            is_fake(fake[2].grad)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                self.assertEqual(linnet.causal_linear_attention(*fake).dtype, torch.bfloat16)
            new = torch.ones(2, 9, 3, 4)
            self.assertEqual(linnet.causal_linear_attention(new, new, new).shape, (2, 9, 3, 4))
        # Fake tensors of wrong shapes are refused too.
        self.refuses(r"got q \[2, 9, 3, 4\]", lambda: linnet.causal_linear_attention(fake[0], fake[2], fake[2]))
        # Second derivatives differentiate the plain form. It loops over the sequences, so it must read cu_seqlens.
        rows = [t[0] for t in fake]
        out = linnet.causal_linear_attention_packed(*rows, mode.from_tensor(torch.tensor([0, 4, 9])))
        self.refuses("cu_seqlens has a shape but no data",
                     lambda: torch.autograd.grad(out.sum(), rows, create_graph=True))

    def test_meta_device(self):
        self.run_all(lambda t: t.to("meta"), lambda t: self.assertEqual(t.device.type, "meta"))

    def test_make_fx(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        def gradient(q, k, v):
            return torch.autograd.grad(linnet.causal_linear_attention(q, k, v).square().sum(), (q, k, v))

        x = leaves(random((2, 9, 3, 4), (2, 9, 3, 4), (2, 9, 3, 5)))
        graph = make_fx(gradient)(*x)
        names = [str(node.target) for node in graph.graph.nodes if "linnet" in str(node.target)]
        self.assertEqual(names, ["linnet._causal_linear_forward.default",
                                 "linnet._causal_linear_backward.default"])
        other = leaves(random((2, 9, 3, 4), (2, 9, 3, 4), (2, 9, 3, 5)))
        for g, w in zip(graph(*other), gradient(*other)):
            self.same(g, w)

    def test_jit(self):
        def attention(q, k, v):
            out, s, z = torch.ops.linnet.causal_linear_attention_state(q, k, v, eps=1e-5)
            return out, torch.ops.linnet.causal_linear_step(q[:, 0], k[:, 0], v[:, 0], s, z)[0]

        x = random((2, 9, 3, 4), (2, 9, 3, 4), (2, 9, 3, 5))
        for make in (torch.jit.script, lambda f: torch.jit.trace(f, tuple(x))):
            compiled = make(attention)
            self.assertIn("linnet::causal_linear_attention_state", str(compiled.graph))
            file = io.BytesIO()
            torch.jit.save(compiled, file)
            file.seek(0)
            y = leaves(random((1, 5, 2, 4), (1, 5, 2, 4), (1, 5, 2, 5)))
            for run in (compiled, torch.jit.load(file)):
                self.all_near(run(*y), attention(*y), 1e-6)
                self.all_near(gradients(run(*y), y), gradients(attention(*y), y), 1e-6)

    def test_functorch(self):
        q, k, v = random((2, 9, 3, 4), (2, 9, 3, 4), (2, 9, 3, 5))
        (leaf,) = leaves([q])

        def loss(q):
            return linnet.causal_linear_attention(q, k, v).square().sum()

        try:
            import functorch
            grad = functorch.grad(loss)(q)
        except (ImportError, RuntimeError) as error:  # PyTorch 2.11 refuses it for autograd functions in C++
            self.skipTest(str(error)) if "functorch" in str(error) else self.fail(str(error))
        self.near(grad, torch.autograd.grad(loss(leaf), leaf)[0])
        many, attend = torch.stack([q, q + 1]), lambda q: linnet.causal_linear_attention(q, k, v)
        self.near(functorch.vmap(attend)(many), torch.stack([attend(q) for q in many]))

    def test_backward_only(self):
        """The opaque backward operation has no derivative; the error says so."""
        x = leaves(random((1, 5, 1, 2), (1, 5, 1, 2), (1, 5, 1, 2)))
        out, kept, _, _ = linnet._causal_linear_forward(
            *x, None, None, None, None, False, "elu", True, 1e-6)
        grads = linnet._causal_linear_backward(
            torch.ones_like(out), None, None, *x, out.detach(), kept, None, None, None, None,
            "elu", True, 1e-6)
        self.refuses("not implemented", lambda: grads[0].sum().backward())


class Errors(Case):
    def test_errors_name_the_fault(self):
        attention, step = linnet.causal_linear_attention, linnet.causal_linear_step
        state, packed = linnet.causal_linear_attention_state, linnet.causal_linear_attention_packed
        for dtype in (torch.float32, torch.double, torch.bfloat16):
            x, rows = torch.zeros(2, 5, 3, 4, dtype=dtype), torch.zeros(5, 3, 4, dtype=dtype)
            kept = torch.float32 if dtype == torch.bfloat16 else dtype
            s, z = torch.zeros(2, 3, 4, 4, dtype=kept), torch.zeros(2, 3, 4, dtype=kept)
            cut = torch.tensor([0, 2, 5])
            for text, run in (
                    (r"needs q, k and v of \[N, L, H, D\].*got q \[2, 5, 3, 4\], k \[2, 4, 3, 4\]",
                     lambda: attention(x, x[:, 1:], x)),
                    (r"needs q, k and v of \[N, L, H, D\]", lambda: attention(x, x, rows)),
                    (r"empty \(L = 0\)", lambda: attention(x[:, :0], x[:, :0], x[:, :0])),
                    ("D, M >= 1", lambda: attention(x, x, x[..., :0])),
                    (r"lengths must be a dense int64 \[2\]",
                     lambda: attention(x, x, x, lengths=torch.tensor([1, 2, 3]))),
                    ("lengths must be a dense int64",
                     lambda: attention(x, x, x, lengths=torch.tensor([1, 2], dtype=torch.int32))),
                    ("lengths must lie between 0 and L = 5; sequence 1 has length -5",
                     lambda: attention(x, x, x, lengths=torch.tensor([0, -5]))),
                    ("lengths must lie between 0 and L = 5; sequence 0 has length 6",
                     lambda: state(x, x, x, s, z, lengths=torch.tensor([6, 5]))),
                    ("lengths must be on q's device",
                     lambda: attention(x, x, x, lengths=torch.tensor([1, 2]).to("meta"))),
                    ('feature_map is "elu" or "identity"; got "relu"',
                     lambda: attention(x, x, x, feature_map="relu")),
                    ("one floating-point type on one device; got q .* v ComplexFloat on cpu",
                     lambda: attention(x, x, x.to(torch.complex64))),
                    ("one floating-point type", lambda: attention(x.long(), x.long(), x.long())),
                    ("one device.* k .* on meta", lambda: attention(x, x.to("meta"), x)),
                    ("a state needs both s and z, or neither", lambda: state(x, x, x, s)),
                    (r"a state must be s \[2, 3, 4, 4\] and z \[2, 3, 4\]", lambda: state(x, x, x, s[:1], z)),
                    ("cu_seqlens decreases from 3 to 2", lambda: packed(rows, rows, rows, torch.tensor([0, 3, 2, 5]))),
                    ("must go from 0 to T = 5; it goes from 0 to 4",
                     lambda: packed(rows, rows, rows, torch.tensor([0, 4]))),
                    (r"cu_seqlens must be int64 \[N \+ 1\]", lambda: packed(rows, rows, rows, cut.int())),
                    (r"needs q, k and v of \[T, H, D\]", lambda: packed(x, x, x, cut)),
                    (r"a causal linear step needs q, k and v of \[N, H, D\]", lambda: step(x, x, x)),
                    ("Unknown keyword argument 'mask'", lambda: attention(x, x, x, mask=x)),
                    ("missing value for argument 'v'", lambda: attention(x, x)),
                    ("Expected a value of type 'str'", lambda: attention(x, x, x, feature_map=1))):
                with self.subTest(text=text, dtype=dtype):
                    self.refuses(text, run)
        self.refuses("one floating-point type", lambda: attention(x.float(), x.float(), x.double()))
        self.refuses("of v's type", lambda: state(*[x.float()] * 3, s.double(), z.double()))


def readme_blocks():
    """The README's code blocks on PyTorch; python_package_test.py runs its other blocks."""
    page = (SOURCE / "python" / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "import torch" in block]


class Modules(Case):
    def run_readme(self):
        """Runs the README's example unchanged, in a folder that has the library at the path in the example."""
        names = {"__name__": "readme"}
        with tempfile.TemporaryDirectory() as folder:
            lib = pathlib.Path(folder) / "build/release/python"
            lib.mkdir(parents=True)
            (lib / "liblinnet_torch.so").symlink_to(LIBRARY)
            before = os.getcwd()
            os.chdir(folder)
            try:
                for block in readme_blocks():
                    exec(compile(block, "python/README.md", "exec"), names)
            finally:
                os.chdir(before)
        return names

    def test_readme(self):
        self.assertEqual(len(readme_blocks()), 1)
        names = self.run_readme()
        self.assertGreater(float(names["attention"].projections.weight.grad.abs().max()), 0)

    def test_copied_saved_and_trained(self):
        attention = self.run_readme()["attention"]
        attention.zero_grad()
        x = torch.randn(2, 30, 64)
        want = attention(x)
        self.same(copy.deepcopy(attention)(x), want)
        fresh, file = copy.deepcopy(attention), io.BytesIO()
        torch.save(attention.state_dict(), file)
        file.seek(0)
        for parameter in fresh.parameters():
            torch.nn.init.zeros_(parameter)
        fresh.load_state_dict(torch.load(file))
        self.same(fresh(x), want)
        self.same(attention(x, lengths=torch.tensor([10, 30]))[:, :10], want[:, :10])
        optimizer = torch.optim.Adam(attention.parameters(), 1e-2)
        target, losses = torch.randn(2, 30, 64), []
        for _ in range(30):
            optimizer.zero_grad()
            losses.append((attention(x) - target).square().mean())
            losses[-1].backward()
            optimizer.step()
        self.assertLess(float(losses[-1]), 0.95 * float(losses[0]))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.ops.load_library(str(LIBRARY))
    unittest.main()
