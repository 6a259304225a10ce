#include "bench/torch/attention_check.h"

#include <torch/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "linnet/base/larger_error.h"
#include "linnet/kernels/causal_linear_ref.h"

namespace linnet::bench {
namespace {

using torch::Tensor;
using Vector = std::vector<double>;

constexpr double kEps = 1e-6;  // of the normalizer of linear attention

// The maximum of all added errors; NaN if one is NaN.
class Worst {
 public:
  void Add(const RelativeError& error) { worst_ = LargerError(worst_, error.value()); }
  double value() const { return worst_; }

 private:
  double worst_ = 0;
};

// One head as [N, dim] in double.
Tensor Head(const Tensor& x, int64_t batch, int64_t head) {
  return x.select(0, batch).select(1, head).detach().to(torch::kFloat64).contiguous();
}

Vector Values(const Tensor& x) {
  const Tensor dense = x.contiguous();
  const double* data = dense.data_ptr<double>();
  return {data, data + dense.numel()};
}

void Compare(RelativeError& error, const Tensor& got, const Tensor& expected) {
  const Vector a = Values(got), b = Values(expected);
  for (size_t i = 0; i < a.size(); ++i) error.Add(a[i], b[i]);
}
void Compare(RelativeError& error, const Tensor& got, const Vector& expected) {
  const Vector a = Values(got);
  for (size_t i = 0; i < a.size(); ++i) error.Add(a[i], expected[i]);
}

// Returns [x, -x] for one round of hashing, with x = q planes. The bucket of a row is the index of
// its largest element.
Tensor Directions(const Tensor& q, const Tensor& planes) {
  const Tensor x = torch::matmul(q.to(torch::kFloat64), planes.to(torch::kFloat64));
  return torch::cat({x, -x}, 1);
}

std::vector<int64_t> SampledRows(int64_t length) {
  std::set<int64_t> rows;
  for (const int64_t row :
       {int64_t{0}, int64_t{1}, int64_t{33}, length / 3, length / 2, length - 2, length - 1}) {
    if (row >= 0 && row < length) rows.insert(row);
  }
  return {rows.begin(), rows.end()};
}

// Calls check(batch, head) for the last head of the last sequence and, unless `long_work`, for the
// first head of the first sequence.
void ForHeads(const AttentionProblem& problem, bool long_work,
              const std::function<void(int64_t, int64_t)>& check) {
  const int64_t batch = problem.q.size(0) - 1, head = problem.q.size(2) - 1;
  if (!long_work && batch + head > 0) check(0, 0);
  check(batch, head);
}

// ------------------------------------------------------------------------------------------
// Reformer attention of one head.

class LshHead {
 public:
  LshHead(const Tensor& q, const Tensor& v, const Tensor& grad_out, const LshRounds& rounds,
          bool causal)
      : length_(q.size(0)),
        d_(q.size(1)),
        m_(v.size(1)),
        causal_(causal),
        q_(Values(q)),
        v_(Values(v)),
        g_(Values(grad_out)),
        k_(q_),
        norm_(static_cast<size_t>(length_)) {
    for (int64_t i = 0; i < length_; ++i) {
      double squares = 0;
      for (int64_t c = 0; c < d_; ++c) squares += At(q_, i, d_)[c] * At(q_, i, d_)[c];
      norm_[static_cast<size_t>(i)] = std::sqrt(squares);
      for (int64_t c = 0; c < d_; ++c) k_[static_cast<size_t>(i * d_ + c)] /= std::sqrt(squares);
    }
    for (int64_t r = 0; r < rounds.planes.size(0); ++r) {
      const Tensor bucket = Directions(q, rounds.planes[r]).argmax(1).contiguous();
      const int64_t* b = bucket.data_ptr<int64_t>();
      Round& round = rounds_.emplace_back();
      round.bucket.assign(b, b + length_);
      round.members.resize(static_cast<size_t>(rounds.buckets));
      for (int64_t i = 0; i < length_; ++i) {
        round.members[static_cast<size_t>(b[i])].push_back(i);
      }
      round.chunk.resize(static_cast<size_t>(length_));
      int64_t place = 0;  // index in the positions sorted by bucket, then by position
      for (const auto& members : round.members) {
        for (const int64_t i : members) {
          round.chunk[static_cast<size_t>(i)] = place++ / rounds.chunk;
        }
      }
    }
  }

  // One row of attention: the output, and the weights and score gradients of the visible keys.
  struct Row {
    std::vector<int64_t> keys;
    Vector weights, grads;  // per key: p_ij, and the gradient of its score
    Vector out;
  };
  Row At(int64_t i) const {
    Row row;
    row.keys = Seen(i);
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const int64_t j : row.keys) {
      double score = 0;
      for (int64_t c = 0; c < d_; ++c) score += At(q_, i, d_)[c] * At(k_, j, d_)[c];
      row.weights.push_back(score * Scale());
      most = std::max(most, row.weights.back());
    }
    for (double& weight : row.weights) sum += weight = std::exp(weight - most);
    row.out.resize(static_cast<size_t>(m_));
    double mean = 0;
    for (size_t n = 0; n < row.keys.size(); ++n) {
      row.weights[n] /= sum;
      double along = 0;
      for (int64_t c = 0; c < m_; ++c) {
        row.out[static_cast<size_t>(c)] += row.weights[n] * At(v_, row.keys[n], m_)[c];
        along += At(g_, i, m_)[c] * At(v_, row.keys[n], m_)[c];
      }
      row.grads.push_back(along);
      mean += row.weights[n] * along;
    }
    for (size_t n = 0; n < row.keys.size(); ++n) {
      row.grads[n] = row.weights[n] * (row.grads[n] - mean);
    }
    return row;
  }

  // The gradients of query i and of value i. Key i is query i normalized to length 1, so the key's
  // gradient contributes to the query's.
  std::pair<Vector, Vector> Gradients(int64_t i) const {
    Vector as_query(static_cast<size_t>(d_)), as_key = as_query;
    Vector value(static_cast<size_t>(m_));
    const Row own = At(i);
    for (size_t n = 0; n < own.keys.size(); ++n) {
      for (int64_t c = 0; c < d_; ++c) {
        as_query[static_cast<size_t>(c)] += own.grads[n] * Scale() * At(k_, own.keys[n], d_)[c];
      }
    }
    std::set<int64_t> near = {i};  // positions that may attend to i
    for (const Round& round : rounds_) {
      const auto& members = round.members[static_cast<size_t>(round.bucket[Index(i)])];
      near.insert(members.begin(), members.end());
    }
    for (const int64_t from : near) {
      const std::vector<int64_t> keys = Seen(from);
      if (std::find(keys.begin(), keys.end(), i) == keys.end()) continue;
      const Row row = At(from);
      for (size_t n = 0; n < row.keys.size(); ++n) {
        if (row.keys[n] != i) continue;
        for (int64_t c = 0; c < d_; ++c) {
          as_key[static_cast<size_t>(c)] += row.grads[n] * Scale() * At(q_, from, d_)[c];
        }
        for (int64_t c = 0; c < m_; ++c) {
          value[static_cast<size_t>(c)] += row.weights[n] * At(g_, from, m_)[c];
        }
      }
    }
    double along = 0;  // component of the key's gradient along the key
    for (int64_t c = 0; c < d_; ++c) along += as_key[static_cast<size_t>(c)] * At(k_, i, d_)[c];
    for (int64_t c = 0; c < d_; ++c) {
      as_query[static_cast<size_t>(c)] +=
          (as_key[static_cast<size_t>(c)] - along * At(k_, i, d_)[c]) / norm_[Index(i)];
    }
    return {as_query, value};
  }

 private:
  struct Round {
    std::vector<int64_t> bucket, chunk;         // of each position
    std::vector<std::vector<int64_t>> members;  // of each bucket
  };

  static size_t Index(int64_t i) { return static_cast<size_t>(i); }
  static const double* At(const Vector& x, int64_t row, int64_t width) {
    return x.data() + row * width;
  }
  double Scale() const { return 1 / std::sqrt(static_cast<double>(d_)); }

  // The positions that i attends to: all others that, in at least one round, are in the same bucket
  // and in the same or the previous chunk; if causal, only those before i. If there are none, i
  // attends to itself.
  std::vector<int64_t> Seen(int64_t i) const {
    std::set<int64_t> seen;
    for (const Round& round : rounds_) {
      for (const int64_t j : round.members[Index(round.bucket[Index(i)])]) {
        const int64_t back = round.chunk[Index(i)] - round.chunk[Index(j)];
        if (j != i && (back == 0 || back == 1) && (!causal_ || j < i)) seen.insert(j);
      }
    }
    if (seen.empty()) seen.insert(i);
    return {seen.begin(), seen.end()};
  }

  int64_t length_, d_, m_;
  bool causal_;
  // g_: gradient of the output; k_: the normalized queries; norm_: the length of each query.
  Vector q_, v_, g_, k_, norm_;
  std::vector<Round> rounds_;
};

// Attention whose weights are functions of the scores q . k / sqrt(D), divided by their sum.
struct Weighting {
  double hidden;                                      // a score whose weight is 0
  std::function<Tensor(const Tensor& scores)> norms;  // of rows of scores: [rows, 1]
  // The weights of scores, and their derivatives if the norms stayed the same.
  std::function<Tensor(const Tensor&scores, const Tensor&norms)> weights, slopes;
};

double QuadraticError(const AttentionProblem& problem, const AttentionResult& result,
                      const Weighting& weighting) {
  torch::NoGradGuard no_grad;
  constexpr int64_t kBlock = 256;
  const int64_t length = problem.q.size(1);
  const double scale = 1 / std::sqrt(static_cast<double>(problem.q.size(3)));
  RelativeError out_error, q_error, k_error, v_error;
  ForHeads(problem, length > 16384, [&](int64_t batch, int64_t head) {
    const Tensor q = Head(problem.q, batch, head), k = Head(problem.k, batch, head),
                 v = Head(problem.v, batch, head), g = Head(problem.grad_out, batch, head);
    // The gradients of one key need the output and the norm of every row.
    const Tensor out = torch::empty_like(v), norms = torch::empty({length}, torch::kFloat64);
    for (int64_t begin = 0; begin < length; begin += kBlock) {
      const int64_t rows = std::min(kBlock, length - begin);
      const int64_t keys = problem.causal ? begin + rows : length;
      Tensor scores = torch::matmul(q.narrow(0, begin, rows) * scale, k.narrow(0, 0, keys).t());
      if (problem.causal) {
        scores.masked_fill_(torch::ones({rows, keys}, torch::kBool).triu(begin + 1),
                            weighting.hidden);
      }
      const Tensor norm = weighting.norms(scores);
      norms.narrow(0, begin, rows).copy_(norm.squeeze(1));
      out.narrow(0, begin, rows)
          .copy_(torch::matmul(weighting.weights(scores, norm), v.narrow(0, 0, keys)));
    }
    Compare(out_error, Head(result.out, batch, head), out);
    const Tensor along = (g * out).sum(1);
    const Tensor grad_q = Head(result.grad_q, batch, head),
                 grad_k = Head(result.grad_k, batch, head),
                 grad_v = Head(result.grad_v, batch, head);
    for (const int64_t row : SampledRows(length)) {
      {  // the keys that query `row` attends to
        const int64_t keys = problem.causal ? row + 1 : length;
        const Tensor seen = k.narrow(0, 0, keys), scores = torch::mv(seen, q[row]) * scale;
        const Tensor w = weighting.slopes(scores, norms[row]) *
                         (torch::mv(v.narrow(0, 0, keys), g[row]) - along[row]);
        Compare(q_error, grad_q[row], torch::mv(seen.t(), w) * scale);
      }
      // The queries that attend to key `row`.
      const int64_t first = problem.causal ? row : 0, queries = length - first;
      const Tensor from = q.narrow(0, first, queries), grads = g.narrow(0, first, queries);
      const Tensor scores = torch::mv(from, k[row]) * scale;
      const Tensor norm = norms.narrow(0, first, queries);
      const Tensor w = weighting.slopes(scores, norm) *
                       (torch::mv(grads, v[row]) - along.narrow(0, first, queries));
      Compare(k_error, grad_k[row], torch::mv(from.t(), w) * scale);
      Compare(v_error, grad_v[row], torch::mv(grads.t(), weighting.weights(scores, norm)));
    }
  });
  Worst worst;
  for (const auto& error : {out_error, q_error, k_error, v_error}) worst.Add(error);
  return worst.value();
}

}  // namespace

double SoftmaxError(const AttentionProblem& problem, const AttentionResult& result) {
  const auto weights = [](const Tensor& scores, const Tensor& norms) {
    return (scores - norms).exp();
  };
  return QuadraticError(problem, result,
                        {.hidden = -std::numeric_limits<double>::infinity(),
                         .norms = [](const Tensor& scores) { return scores.logsumexp(1, true); },
                         .weights = weights,
                         .slopes = weights});
}

double Polynomial2Error(const AttentionProblem& problem, const AttentionResult& result) {
  return QuadraticError(
      problem, result,
      {.hidden = -1,
       .norms = [](const Tensor& scores) { return (scores + 1).square().sum(1, true) + kEps; },
       .weights = [](const Tensor& scores,
                     const Tensor& norms) { return (scores + 1).square() / norms; },
       .slopes = [](const Tensor& scores,
                    const Tensor& norms) { return 2 * (scores + 1) / norms; }});
}

double LinearError(const AttentionProblem& problem, const AttentionResult& result) {
  const int64_t length = problem.q.size(1);
  RelativeError out_error, q_error, k_error, v_error;
  ForHeads(problem, false, [&](int64_t batch, int64_t head) {
    const Tensor q = Head(problem.q, batch, head), k = Head(problem.k, batch, head),
                 v = Head(problem.v, batch, head), g = Head(problem.grad_out, batch, head);
    const Tensor out = Head(result.out, batch, head), grad_q = Head(result.grad_q, batch, head),
                 grad_k = Head(result.grad_k, batch, head),
                 grad_v = Head(result.grad_v, batch, head);
    if (!problem.causal) {  // all rows share two sums, so autograd checks every row at low cost
      q.requires_grad_(), k.requires_grad_(), v.requires_grad_();
      const auto phi = [](const Tensor& x) { return torch::where(x > 0, x + 1, x.exp()); };
      const Tensor phi_q = phi(q), phi_k = phi(k);
      const Tensor expected = torch::matmul(phi_q, torch::matmul(phi_k.t(), v)) /
                              (torch::mv(phi_q, phi_k.sum(0)) + kEps).unsqueeze(1);
      const auto grads = torch::autograd::grad({expected}, {q, k, v}, {g});
      Compare(out_error, out, expected.detach());
      Compare(q_error, grad_q, grads[0]);
      Compare(k_error, grad_k, grads[1]);
      Compare(v_error, grad_v, grads[2]);
      return;
    }
    const kernels::CausalLinearRef twin(static_cast<size_t>(length), static_cast<size_t>(q.size(1)),
                                        static_cast<size_t>(v.size(1)),
                                        {.eps = static_cast<float>(kEps)}, Values(q), Values(k),
                                        Values(v), static_cast<size_t>(length));
    const Vector grad = Values(g);
    for (int64_t row = 0; row < length; ++row) {
      Compare(out_error, out[row], twin.Out(static_cast<size_t>(row)));
    }
    for (const int64_t row : SampledRows(length)) {
      const auto i = static_cast<size_t>(row);
      Compare(q_error, grad_q[row], twin.GradQ(i, grad));
      Compare(k_error, grad_k[row], twin.GradK(i, grad));
      Compare(v_error, grad_v[row], twin.GradV(i, grad));
    }
  });
  Worst worst;
  for (const auto& error : {out_error, q_error, k_error, v_error}) worst.Add(error);
  return worst.value();
}

void SeparateBuckets(const AttentionProblem& problem, const LshRounds& rounds) {
  torch::NoGradGuard no_grad;
  constexpr double kNear = 1e-4;
  ForHeads(problem, false, [&](int64_t batch, int64_t head) {
    const Tensor q = problem.q.detach().select(0, batch).select(1, head);
    for (int attempt = 0; attempt < 100; ++attempt) {
      Tensor near = torch::zeros({q.size(0)}, torch::kBool);
      for (int64_t r = 0; r < rounds.planes.size(0); ++r) {
        // The two largest elements: the bucket changes where they are equal.
        const Tensor two = std::get<0>(Directions(q, rounds.planes[r]).topk(2, 1));
        near = near.logical_or(two.select(1, 0) - two.select(1, 1) < kNear);
      }
      const Tensor rows = near.nonzero().squeeze(1);
      if (rows.numel() == 0) return;
      q.index_copy_(0, rows, torch::randn({rows.numel(), q.size(1)}));
    }
  });
}

double LshError(const AttentionProblem& problem, const AttentionResult& result,
                const LshRounds& rounds) {
  torch::NoGradGuard no_grad;
  RelativeError out_error, q_error, v_error;
  ForHeads(problem, false, [&](int64_t batch, int64_t head) {
    const LshHead plain(Head(problem.q, batch, head), Head(problem.v, batch, head),
                        Head(problem.grad_out, batch, head), rounds, problem.causal);
    const Tensor out = Head(result.out, batch, head), grad_q = Head(result.grad_q, batch, head),
                 grad_v = Head(result.grad_v, batch, head);
    for (const int64_t row : SampledRows(problem.q.size(1))) {
      Compare(out_error, out[row], plain.At(row).out);
      const auto [query, value] = plain.Gradients(row);
      Compare(q_error, grad_q[row], query);
      Compare(v_error, grad_v[row], value);
    }
  });
  Worst worst;
  for (const auto& error : {out_error, q_error, v_error}) worst.Add(error);
  return worst.value();
}

}  // namespace linnet::bench
