#include "linnet/ops/lsh_attention.h"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "linnet/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/lengths.h"
#include "linnet/ops/lowest_score.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

// A number to add to the score of a position's own key: so low that this key counts only if there
// is no other key, but above the score of masked keys.
double Self(torch::ScalarType type) { return std::max(-1e5, LowestScore(type) / 2); }

// The sequences, sorted and cut into chunks by one round. There are B = N H sequences (one for each
// batch element and head), with C chunks of c positions each. Here L is the padded length, C c.
class Chunks {
 public:
  // order [B, C c]: the positions of each sequence, in sorted order
  Chunks(const Tensor& order, int64_t chunk)
      : order_(order), chunk_(chunk), places_(order.argsort(int64_t{1})) {
    queries = order.unflatten(1, {-1, chunk});
    keys = LookBack(queries.unsqueeze(3), -1).squeeze(3);
  }

  // Sorts x and cuts it into chunks: x [B, L, dim] -> [B, C, c, dim].
  Tensor Cut(const Tensor& x) const {
    return x.gather(1, order_.unsqueeze(2).expand({-1, -1, x.size(2)})).unflatten(1, {-1, chunk_});
  }
  // [B, C, c, dim] -> [B, C, 2 c, dim]: the previous chunk, then the chunk itself. Chunk 0 is
  // preceded by values of `fill`.
  static Tensor LookBack(const Tensor& x, double fill) {
    const Tensor before =
        torch::cat({torch::full_like(x.narrow(1, 0, 1), fill), x.narrow(1, 0, x.size(1) - 1)}, 1);
    return torch::cat({before, x}, 2);
  }
  // The inverse of Cut(): [B, C, c, dim] -> [B, L, dim].
  Tensor Join(const Tensor& x) const {
    const Tensor sorted = x.flatten(1, 2);
    return sorted.gather(1, places_.unsqueeze(2).expand({-1, -1, sorted.size(2)}));
  }
  // The index of the chunk that holds each position: [B, L].
  Tensor chunk_of() const { return torch::div(places_, chunk_, "floor"); }

  // The positions (not the vectors) of each chunk's queries, [B, C, c], and keys, [B, C, 2 c]; -1
  // means no key.
  Tensor queries, keys;

 private:
  Tensor order_;
  int64_t chunk_;
  Tensor places_;  // [B, C c], the inverse of order_: the index of each position in sorted order
};

// Gathers x [B, L] at positions [B, C, c]; the result at position -1 is unspecified.
Tensor At(const Tensor& x, const Tensor& positions) {
  return x.gather(1, positions.clamp_min(0).flatten(1)).view_as(positions);
}

// [N, L, H, dim] -> [N H, padded L, dim]
Tensor Sequences(const Tensor& x, int64_t padding) {
  return torch::constant_pad_nd(x.transpose(1, 2), {0, 0, 0, padding}).flatten(0, 1);
}

Tensor Normalized(const Tensor& q) {
  // The lower bound keeps zero queries and their gradients finite.
  return q / q.square().sum(-1, true).clamp_min(1e-24).sqrt();
}

int64_t Padding(int64_t length, int64_t chunk) { return (chunk - length % chunk) % chunk; }

// [B, padded L]: whether each position is below its sequence's length.
Tensor Valid(const Tensor& q, const Tensor& lengths, int64_t padding) {
  const auto options = q.options().dtype(torch::kInt64).requires_grad(false);
  // The lengths, L at most.
  const Tensor there = lengths.defined() ? lengths.clamp_max(q.size(1))
                                         : torch::full({q.size(0)}, q.size(1), options);
  const Tensor position = torch::arange(q.size(1) + padding, options);
  return (position.unsqueeze(0) < there.unsqueeze(1)).repeat_interleave(q.size(2), 0);
}

Tensor Plain(const Tensor& q_in, const Tensor& v_in, const Tensor& lengths, const Tensor& planes,
             const LshOptions& options) {
  const int64_t batch = q_in.size(0), length = q_in.size(1), heads = q_in.size(2);
  const int64_t rounds = planes.size(0), chunk = options.chunk, padding = Padding(length, chunk);
  const Tensor q = Sequences(q_in, padding), v = Sequences(v_in, padding);
  const Tensor k = Normalized(q);
  const Tensor valid = Valid(q_in, lengths, padding);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));

  // Padding goes into an extra bucket after all others: [rounds, B, padded L].
  const Tensor buckets =
      torch::constant_pad_nd(LshBuckets(q_in, planes, options.buckets), {0, padding})
          .flatten(1, 2)
          .masked_fill(valid.logical_not().unsqueeze(0), options.buckets);
  std::vector<Chunks> sorted;
  std::vector<Tensor> chunk_of;
  for (int64_t r = 0; r < rounds; ++r) {
    sorted.emplace_back(LshOrder(buckets[r]), chunk);
    chunk_of.push_back(sorted.back().chunk_of());
  }

  std::vector<Tensor> outs, sums;
  for (const Chunks& chunks : sorted) {
    const Tensor queries = chunks.queries.unsqueeze(3), keys = chunks.keys.unsqueeze(2);
    // rule: the pairs (query, key) whose key exists, is below its sequence's length and, if causal,
    // is not after the query.
    Tensor rule = (keys >= 0).logical_and(At(valid, chunks.keys).unsqueeze(2));
    if (options.causal) rule = rule.logical_and(keys <= queries);
    // near: the pairs whose key is, in round r, in the query's bucket, and in the query's chunk or
    // the chunk before. visible: the pairs of `rule` that are near in the round of `chunks`.
    // times: the number of rounds in which a pair is near. Subtracting log(times) from its score
    // makes the pair count once in the sum over the rounds.
    Tensor times, visible;
    for (int64_t r = 0; r < rounds; ++r) {
      const auto differ = [&](const Tensor& x) {
        return At(x, chunks.queries).unsqueeze(3) - At(x, chunks.keys).unsqueeze(2);
      };
      const Tensor back = differ(chunk_of[static_cast<size_t>(r)]);
      const Tensor near = (differ(buckets[r]) == 0)
                              .logical_and(back == 0)
                              .logical_or((differ(buckets[r]) == 0).logical_and(back == 1));
      times = times.defined() ? times + near : near.to(torch::kInt64);
      if (&chunks == &sorted[static_cast<size_t>(r)]) visible = near.logical_and(rule);
    }
    Tensor scores =
        torch::matmul(chunks.Cut(q) * scale, Chunks::LookBack(chunks.Cut(k), 0).transpose(2, 3)) -
        times.clamp_min(1).to(q.dtype()).log();
    scores = torch::where(keys == queries, scores + Self(q.scalar_type()), scores);
    const Tensor hidden = visible.logical_not();
    scores = scores.masked_fill(hidden, LowestScore(q.scalar_type()));
    const Tensor sum = scores.logsumexp(-1, true);
    const Tensor weights = (scores - sum).exp().masked_fill(hidden, 0);
    outs.push_back(chunks.Join(torch::matmul(weights, Chunks::LookBack(chunks.Cut(v), 0))));
    sums.push_back(chunks.Join(sum));
  }
  // If a position sees only its own key in a round, the logsumexp of its scores (`sum`) is near
  // Self() in that round. The round then has weight 0 if the position sees other keys in another
  // round.
  const Tensor share = torch::softmax(torch::stack(sums), 0);
  const Tensor out = (share * torch::stack(outs)).sum(0);
  return out.unflatten(0, {batch, heads}).narrow(2, 0, length).transpose(1, 2);
}

void Check(const Tensor& q, const Tensor& v, const Tensor& lengths, const Tensor& planes,
           const LshOptions& options) {
  if (options.chunk < 1 || options.buckets < 1 ||
      (options.buckets > 1 && options.buckets % 2 != 0)) {
    throw InputError(
        "LSH attention needs chunks of at least 1 position, and 1 or an even number of buckets; "
        "got ",
        options.chunk, " and ", options.buckets);
  }
  if (q.dim() != 4 || v.dim() != 4 || v.sizes().slice(0, 3) != q.sizes().slice(0, 3) ||
      q.size(3) == 0 || v.size(3) == 0) {
    throw InputError("LSH attention needs q [N, L, H, D] and v [N, L, H, M], D, M >= 1; got q ",
                     q.sizes(), ", v ", v.sizes());
  }
  if (planes.dim() != 3 || planes.size(0) == 0 || planes.size(1) != q.size(3) ||
      (options.buckets > 1 && planes.size(2) != options.buckets / 2)) {
    throw InputError("LSH attention: planes must be [rounds, D, buckets / 2], with D = ", q.size(3),
                     " and ", options.buckets, " buckets; got ", planes.sizes());
  }
  for (const Tensor& x : {v, planes}) {
    if (x.scalar_type() == q.scalar_type() && x.device() == q.device()) continue;
    throw InputError("LSH attention needs q, v and planes of one type and device; got q ",
                     q.toString(), ", v ", v.toString(), ", planes ", planes.toString());
  }
  CheckLengths("LSH attention", lengths, q);
}

}  // namespace

Tensor LshBuckets(const Tensor& q, const Tensor& planes, int64_t buckets) {
  torch::NoGradGuard no_grad;
  const int64_t rounds = planes.size(0);
  if (buckets == 1) {
    return torch::zeros({rounds, q.size(0), q.size(2), q.size(1)},
                        q.options().dtype(torch::kInt64).requires_grad(false));
  }
  // [rounds, N, H, L, buckets / 2]
  const Tensor projected =
      torch::matmul(q.transpose(1, 2).unsqueeze(0), planes.view({rounds, 1, 1, q.size(3), -1}));
  return torch::cat({projected, -projected}, -1).argmax(-1);
}

Tensor LshOrder(const Tensor& buckets) {
  const int64_t length = buckets.size(-1);
  // The sort keys are distinct, so the order does not depend on the sorting algorithm.
  return (buckets * length + torch::arange(length, buckets.options())).argsort(int64_t{-1});
}

Tensor LshAttention(const Tensor& q, const Tensor& v, const Tensor& lengths, const Tensor& planes,
                    const LshOptions& options) {
  Check(q, v, lengths, planes, options);
  // All chunk sizes >= L give the same result.
  LshOptions clipped = options;
  clipped.chunk = std::clamp<int64_t>(q.size(1), 1, options.chunk);
  if constexpr (kHasFused) {
    if (Fused(q)) return FusedLshAttention(q, v, lengths, planes, clipped);
  }
  return Plain(q, v, lengths, planes, clipped);
}

Tensor SimpleLshAttention(const Tensor& q_in, const Tensor& v_in, const Tensor& lengths,
                          const Tensor& order, const LshOptions& options, bool self_last) {
  const int64_t batch = q_in.size(0), length = q_in.size(1), heads = q_in.size(2);
  const int64_t rounds = order.size(0), chunk = std::min(options.chunk, length);
  const int64_t padding = Padding(length, chunk);
  const Tensor q = Sequences(q_in, padding), v = Sequences(v_in, padding);
  const Tensor k = Normalized(q);
  const Tensor valid = Valid(q_in, lengths, padding);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
  Tensor total;
  for (int64_t r = 0; r < rounds; ++r) {
    Tensor sorted = order[r].flatten(0, 1);
    if (padding > 0) {
      // The padding is sorted last.
      const Tensor behind = torch::arange(length, length + padding, sorted.options());
      sorted = torch::cat({sorted, behind.expand({sorted.size(0), -1})}, 1);
    }
    const Chunks chunks(sorted, chunk);
    const Tensor queries = chunks.queries.unsqueeze(3), keys = chunks.keys.unsqueeze(2);
    Tensor visible = (keys >= 0)
                         .logical_and(At(valid, chunks.keys).unsqueeze(2))
                         .logical_and(At(valid, chunks.queries).unsqueeze(3));
    if (options.causal) visible = visible.logical_and(keys <= queries);
    Tensor scores =
        torch::matmul(chunks.Cut(q) * scale, Chunks::LookBack(chunks.Cut(k), 0).transpose(2, 3));
    if (self_last) {
      scores = torch::where(keys == queries, scores + Self(q.scalar_type()), scores);
    }
    const Tensor hidden = visible.logical_not();
    const Tensor weights =
        torch::softmax(scores.masked_fill(hidden, LowestScore(q.scalar_type())), -1)
            .masked_fill(hidden, 0);
    const Tensor out =
        chunks.Join(torch::matmul(weights, Chunks::LookBack(chunks.Cut(v), 0))) / rounds;
    total = total.defined() ? total + out : out;
  }
  return total.unflatten(0, {batch, heads}).narrow(2, 0, length).transpose(1, 2);
}

}  // namespace linnet::ops
