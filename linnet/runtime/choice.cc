#include "linnet/runtime/choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "linnet/base/error.h"

namespace linnet {

void Validate(const ChoiceOptions& options) {
  if (!(options.temperature >= 0 && options.temperature <= 1e6f)) {
    throw InputError("temperature is ", options.temperature, "; it must lie between 0 and 1e6");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw InputError("top_p is ", options.top_p, "; it must lie in (0, 1]");
  }
}

int32_t Choose(std::span<const float> logits, const ChoiceOptions& options, Philox& rng) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (best == logits.end() || !(*best > -INFINITY)) {
    throw InputError("no symbol is left to choose from");
  }
  const auto likeliest = static_cast<int32_t>(best - logits.begin());
  if (options.temperature == 0 || options.top_k == 1) return likeliest;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t i) { return !(logits[static_cast<size_t>(i)] > -INFINITY); });
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.top_k > 0 && options.top_k < order.size()) {
    const auto end = order.begin() + static_cast<ptrdiff_t>(options.top_k);
    std::nth_element(order.begin(), end, order.end(), likelier);
    order.erase(end, order.end());
  }
  if (options.top_p < 1) std::sort(order.begin(), order.end(), likelier);
  std::vector<double> weights;
  double sum = 0;
  for (const int32_t i : order) {
    const double off = static_cast<double>(logits[static_cast<size_t>(i)]) - *best;
    weights.push_back(std::exp(off / options.temperature));
    sum += weights.back();
  }
  if (options.top_p < 1) {
    double kept = 0;
    size_t count = 0;
    while (count < weights.size() && (count == 0 || kept < options.top_p * sum)) {
      kept += weights[count++];
    }
    sum = kept;
    weights.resize(count);
  }
  double rest = rng.Uniform() * sum;
  for (size_t i = 0; i < weights.size(); ++i) {
    rest -= weights[i];
    if (rest < 0) return order[i];
  }
  return order[weights.size() - 1];
}

void LogSoftmax(std::span<float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - largest));
  const float log_sum = largest + static_cast<float>(std::log(sum));
  for (float& x : logits) x -= log_sum;
}

}  // namespace linnet
