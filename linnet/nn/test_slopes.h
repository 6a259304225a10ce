// Partial derivatives (slopes) of a loss that an oracle computes, by finite differences.
#ifndef LINNET_NN_TEST_SLOPES_H_
#define LINNET_NN_TEST_SLOPES_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "linnet/nn/test_oracle.h"
#include "linnet/nn/test_util.h"

namespace linnet::nn {

// The loss of one sequence: the weighted sum of the outputs of NormHeads() consecutive heads, which
// are normalized together.
class OracleLoss {
 public:
  OracleLoss(const MixerOracle& oracle, const MixerSpec& spec, std::vector<Head> heads,
             const torch::Tensor& weights)
      : oracle_(oracle), spec_(spec), heads_(std::move(heads)) {
    for (const Head& head : heads_) {
      weights_.push_back(RowsOf(weights.unsqueeze(0), 0, static_cast<int64_t>(head.index),
                                static_cast<int64_t>(head.q.size())));
    }
  }

  // The slope in element d at position t of input `which` (0: q, 1: k, 2: v, ...) of head `index`;
  // 0 for padding.
  double Slope(size_t index, size_t which, size_t t, size_t d) {
    Head& head = heads_[index - heads_[0].index];
    Rows& rows = which == 0   ? head.q
                 : which == 1 ? head.k
                 : which == 2 ? head.v
                              : head.more[which - 3];
    if (t >= rows.size() || head.k.empty()) return 0;
    double& x = rows[t][d];
    const double before = x;
    constexpr double kStep = 1e-5;
    double slope = 0;
    // A fourth-order difference, because a norm of small outputs is strongly curved.
    for (const auto& [steps, factor] :
         {std::pair<double, double>{1, 8}, {-1, -8}, {2, -1}, {-2, 1}}) {
      x = before + steps * kStep;
      slope += factor * Value() / (12 * kStep);
    }
    x = before;
    return slope;
  }

 private:
  double Value() const {
    double sum = 0;
    const std::vector<Rows> outs = OutsOf(oracle_, spec_, heads_);
    for (size_t h = 0; h < outs.size(); ++h) {
      for (size_t t = 0; t < outs[h].size(); ++t) sum += Dot(outs[h][t], weights_[h][t]);
    }
    return sum;
  }

  const MixerOracle& oracle_;
  const MixerSpec spec_;
  std::vector<Head> heads_;
  std::vector<Rows> weights_;
};

}  // namespace linnet::nn

#endif  // LINNET_NN_TEST_SLOPES_H_
