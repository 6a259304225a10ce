#include "linnet/ops/scan.h"

#include <torch/utils.h>

#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/ops/cuda.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/lengths.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using kernels::ScanDecay;
using kernels::ScanOptions;
using kernels::ScanWrite;
using torch::Tensor;

void Require(const char* name, const Tensor& x, const Tensor& like, at::IntArrayRef sizes) {
  if (!x.defined() || x.sizes() != sizes || x.scalar_type() != like.scalar_type() ||
      x.device() != like.device()) {
    throw InputError("scan: ", name, " must be ", sizes, " in ", like.toString(), "; got ",
                     x.defined() ? x.sizes() : at::IntArrayRef(), " in ",
                     x.defined() ? x.toString() : "no tensor");
  }
}

void Check(const ScanInputs& in, const ScanOptions& options, const Tensor& lengths,
           const Tensor& state) {
  const Tensor &q = in.q, &v = in.v;
  if (options.normalize)
    throw InputError("scan: options.normalize is not supported; set it to false");
  if (!q.defined() || !v.defined() || q.dim() != 4 || v.dim() != 4 || q.size(1) == 0 ||
      q.size(2) == 0 || q.size(3) == 0 || v.size(3) == 0 || v.size(2) % q.size(2) != 0) {
    throw InputError(
        "scan: q must be [N, L, H / group, D] and v [N, L, H, M], with L, D, M >= 1; got q ",
        q.defined() ? q.sizes() : at::IntArrayRef(), ", v ",
        v.defined() ? v.sizes() : at::IntArrayRef());
  }
  const int64_t n = q.size(0), length = q.size(1), heads = v.size(2), dim = q.size(3);
  Require("k", in.k, q, q.sizes());
  Require("v", v, q, {n, length, heads, v.size(3)});
  if (options.decay != ScanDecay::kNone) {
    Require("decay", in.decay, q, {n, length, heads, options.decay == ScanDecay::kHead ? 1 : dim});
  }
  if (options.write != ScanWrite::kAdd) {
    Require("erase", in.erase, q, {n, length, heads, options.write == ScanWrite::kDelta ? 1 : dim});
  }
  if (options.write == ScanWrite::kTwoSided) Require("write", in.write, q, v.sizes());
  if (options.write == ScanWrite::kRwkv7) Require("write", in.write, q, {n, length, heads, dim});
  if (state.defined()) Require("the state", state, q, {n, heads, dim, v.size(3)});
  CheckLengths("scan", lengths, q, /*dense=*/true);
}

// Returns x [N, L, ...] with zeros at positions >= lengths[n]. Log decays of 0 keep the state, and
// zeros in the other inputs write nothing. Does not multiply by 0, which would leave NaNs.
Tensor Seen(const Tensor& x, const Tensor& lengths) {
  if (!x.defined() || !lengths.defined()) return x;
  const Tensor unseen = torch::arange(x.size(1), lengths.options()) >= lengths.unsqueeze(1);
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[0] = x.size(0), sizes[1] = x.size(1);
  return x.masked_fill(unseen.view(sizes), 0);
}

// Computes the recurrence position by position. p and s are P and S of kernels/scan.h. A position
// writes k times the row u and, with kRwkv7, a second product.
Tensor Plain(const ScanInputs& in, const ScanOptions& options, const Tensor& lengths,
             Tensor& state) {
  const int64_t length = in.q.size(1), group = in.v.size(2) / in.q.size(2);
  const auto heads = [&](const Tensor& x) { return group > 1 ? x.repeat_interleave(group, 2) : x; };
  const auto seen = [&](const Tensor& x) { return Seen(x, lengths); };
  const Tensor q = heads(in.q) * options.scale, k = seen(heads(in.k)), v = seen(in.v);
  const Tensor g = options.decay == ScanDecay::kNone ? Tensor() : seen(in.decay).exp();
  const Tensor erase = seen(in.erase), write = seen(in.write);
  Tensor s = state.defined()
                 ? state
                 : torch::zeros({v.size(0), v.size(2), q.size(3), v.size(3)}, v.options());
  std::vector<Tensor> out;
  for (int64_t t = 0; t < length; ++t) {
    // The vectors of position t as columns [N, H, width, 1] and rows [N, H, 1, width].
    const auto column = [&](const Tensor& x) { return x.select(1, t).unsqueeze(3); };
    const auto row = [&](const Tensor& x) { return x.select(1, t).unsqueeze(2); };
    const Tensor p = g.defined() ? column(g) * s : s;
    Tensor u = row(v);
    if (options.write == ScanWrite::kDelta) {
      u = row(erase) * (u - torch::matmul(row(k), p));
    } else if (options.write == ScanWrite::kTwoSided) {
      u = row(write) * u - torch::matmul(row(erase) * row(k), p);
    }
    Tensor next = p + column(k) * u;
    if (options.write == ScanWrite::kRwkv7) {
      next = next + column(write) * torch::matmul(row(erase), s);
    }
    s = next;
    out.push_back(torch::matmul(row(q), s).squeeze(2));
  }
  state = s;
  return torch::stack(out, 1);
}

// Whether the GPU kernels take tensors like x.
bool TakesCuda(const Tensor& x) { return CudaAttention(x) && x.scalar_type() == torch::kFloat32; }

Tensor Run(const ScanInputs& in, const ScanOptions& options, const Tensor& lengths, Tensor* state) {
  Check(in, options, lengths, state ? *state : Tensor());
  if constexpr (kHasFused) {
    if (Fused(in.q)) return FusedScan(in, options, lengths, state);
  }
  if constexpr (kHasCuda) {
    if (TakesCuda(in.q) && CudaScanTakes(in, options)) {
      return CudaScan(in, options, lengths, state);
    }
  }
  Tensor own;
  return Plain(in, options, lengths, state ? *state : own);
}

void CheckChannels(const Tensor& x, const Tensor& g, const Tensor& lengths, const Tensor& state) {
  if (!x.defined() || x.dim() != 3 || x.size(1) == 0 || x.size(2) == 0) {
    throw InputError("scan: x must be [N, L, C], with L, C >= 1; got ",
                     x.defined() ? x.sizes() : at::IntArrayRef());
  }
  Require("g", g, x, x.sizes());
  if (state.defined()) Require("the state", state, x, {x.size(0), x.size(2)});
  CheckLengths("scan", lengths, x, /*dense=*/true);
}

Tensor PlainChannels(const Tensor& x, const Tensor& g, const Tensor& lengths, Tensor& state) {
  const Tensor add = Seen(x, lengths), decay = Seen(g, lengths).exp();
  Tensor h = state.defined() ? state : torch::zeros({x.size(0), x.size(2)}, x.options());
  std::vector<Tensor> out;
  for (int64_t t = 0; t < x.size(1); ++t) {
    h = decay.select(1, t) * h + add.select(1, t);
    out.push_back(h);
  }
  state = h;
  return torch::stack(out, 1);
}

Tensor RunChannels(const Tensor& x, const Tensor& g, const Tensor& lengths, Tensor* state) {
  CheckChannels(x, g, lengths, state ? *state : Tensor());
  if constexpr (kHasFused) {
    if (Fused(x)) return FusedChannelScan(x, g, lengths, state);
  }
  if constexpr (kHasCuda) {
    if (TakesCuda(x)) return CudaChannelScan(x, g, lengths, state);
  }
  Tensor own;
  return PlainChannels(x, g, lengths, state ? *state : own);
}

}  // namespace

Tensor Scan(const ScanInputs& in, const ScanOptions& options, const Tensor& lengths) {
  return Run(in, options, lengths, nullptr);
}

Tensor Scan(const ScanInputs& in, const ScanOptions& options, const Tensor& lengths,
            Tensor& state) {
  return Run(in, options, lengths, &state);
}

Tensor ChannelScan(const Tensor& x, const Tensor& g, const Tensor& lengths) {
  return RunChannels(x, g, lengths, nullptr);
}

Tensor ChannelScan(const Tensor& x, const Tensor& g, const Tensor& lengths, Tensor& state) {
  return RunChannels(x, g, lengths, &state);
}

}  // namespace linnet::ops
