#include "linnet/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "linnet/error.h"
#include "linnet/kernels/draw.h"
#include "linnet/kernels/exp_sum.h"

namespace linnet {

void Validate(const ChoiceOptions& options) {
  if (!(options.temperature >= 0 && options.temperature <= 1e6f)) {
    throw InputError("temperature is ", options.temperature, "; it must lie between 0 and 1e6");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw InputError("top_p is ", options.top_p, "; it must lie in (0, 1]");
  }
}

namespace {

// A token and its weight exp((logit - largest logit) / temperature), in [0, 1].
struct Weighed {
  int32_t token;
  float weight;
};

bool Likelier(const Weighed& a, const Weighed& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

// The bin of a weight in (0, 1]: its exponent and first three mantissa bits. Heavier weights have
// higher bins.
constexpr size_t kBins = 1024;
size_t BinOf(float weight) {
  constexpr uint32_t kShift = 20;  // drops the low 20 of a float's 23 mantissa bits
  return std::min<size_t>(kBins - 1, std::bit_cast<uint32_t>(weight) >> kShift);
}

// Each thread reuses its buffers, because it may draw tens of thousands of tokens a second.
struct Scratch {
  std::vector<float> weights;
  std::vector<Weighed> candidates, sorted;
  double sums[kBins];      // weight of the candidates of each bin
  uint32_t counts[kBins];  // number of them

  // Selects the tokens of at least this weight as candidates, in token order.
  void Select(float least) {
    candidates.resize(weights.size());
    size_t count = 0;
    for (size_t i = 0; i < weights.size(); ++i) {  // branch-free: branches would be mispredicted
      candidates[count] = {static_cast<int32_t>(i), weights[i]};
      count += weights[i] >= least;
    }
    candidates.resize(count);
  }
  void FillBins() {
    std::fill(std::begin(sums), std::end(sums), 0.0);
    std::fill(std::begin(counts), std::end(counts), 0u);
    for (const Weighed& one : candidates) {
      const size_t bin = BinOf(one.weight);
      sums[bin] += one.weight, ++counts[bin];
    }
  }
  // Sorts the candidates of bins `low` to `high`, the most likely first.
  void Sort(size_t low, size_t high) {
    sorted.clear();
    for (const Weighed& one : candidates) {
      const size_t bin = BinOf(one.weight);
      if (bin >= low && bin <= high) sorted.push_back(one);
    }
    std::sort(sorted.begin(), sorted.end(), Likelier);
  }
  // Draws, with u uniform in (0, 1), among the most likely tokens that together weigh `wanted`, a
  // part of `all`, the weight of all tokens.
  int32_t DrawOfHeaviest(double wanted, double all, double u) {
    // All tokens lighter than `spare` together weigh less than all - wanted. So the tokens to keep
    // are among the tokens that weigh `spare` or more, which are usually few.
    const double spare = (all - wanted) / static_cast<double>(weights.size());
    // Clamped to 1, the largest weight, which `spare` may exceed by rounding.
    Select(std::clamp(static_cast<float>(spare), std::numeric_limits<float>::min(), 1.0f));
    FillBins();
    size_t bin = kBins;
    double kept = 0;
    while (bin > 0 && kept < wanted) kept += sums[--bin];
    kept -= sums[bin];
    // Sort only the bin that contains the least likely token to keep.
    Sort(bin, bin);
    Weighed least = {static_cast<int32_t>(weights.size()), 0};
    for (const Weighed& one : sorted) {
      least = one;
      kept += one.weight;
      if (kept >= wanted) break;
    }
    double rest = u * kept;
    int32_t last = least.token;
    for (const Weighed& one : candidates) {
      if (Likelier(least, one)) continue;
      last = one.token, rest -= one.weight;
      if (rest < 0) break;
    }
    return last;
  }
};

// Draws, with u uniform in (0, 1), among the most likely candidates that together hold top_p of the
// total weight. `candidates` are sorted, the most likely first.
int32_t ChooseOf(std::span<const Weighed> candidates, float top_p, double u) {
  double sum = 0, kept = 0;
  for (const Weighed& one : candidates) sum += one.weight;
  size_t count = 0;
  while (count < candidates.size() && (count == 0 || kept < top_p * sum)) {
    kept += candidates[count++].weight;
  }
  double rest = u * kept;
  for (const Weighed& one : candidates.first(count)) {
    rest -= one.weight;
    if (rest < 0) return one.token;
  }
  return candidates[count - 1].token;
}

// The error for logits from which no token can be drawn.
InputError Undrawable(std::span<const float> logits) {
  const bool masked =
      std::all_of(logits.begin(), logits.end(), [](float logit) { return logit == -INFINITY; });
  if (masked) return InputError("no token is left to choose from");
  return InputError(
      "the model's outputs contain NaN or infinity: its weights are damaged, or so large that sums "
      "overflow");
}

}  // namespace

int32_t Choose(std::span<const float> logits, const ChoiceOptions& options, Philox& rng) {
  const float largest = logits.empty() ? -INFINITY : kernels::Largest(logits.data(), logits.size());
  if (!(largest > -INFINITY)) throw Undrawable(logits);
  if (options.temperature == 0 || options.top_k == 1) {
    const auto found = std::find(logits.begin(), logits.end(), largest);
    return static_cast<int32_t>(found - logits.begin());
  }
  thread_local Scratch scratch;
  std::vector<float>& weights = scratch.weights;
  weights.resize(logits.size());
  const float scale = std::min(1 / options.temperature, 1e30f);
  const double all = kernels::ExpSum(logits.data(), logits.size(), largest, scale, weights.data());
  if (!std::isfinite(all)) throw Undrawable(logits);
  const double u = rng.Uniform(), second = rng.Uniform();  // two for each token, used or not
  if (options.top_k > 0 && options.top_k < logits.size()) {
    scratch.Select(std::numeric_limits<float>::min());
    scratch.FillBins();
    size_t bin = kBins, count = 0;
    while (bin > 0 && count < options.top_k) count += scratch.counts[--bin];
    scratch.Sort(bin, kBins);
    std::span<const Weighed> likeliest = scratch.sorted;
    return ChooseOf(likeliest.first(std::min(likeliest.size(), options.top_k)), options.top_p, u);
  }
  // Draw among all tokens. If the drawn token is one of those that top_p keeps, it has the right
  // distribution; else draw again, among these.
  const size_t drawn = kernels::DrawIndex(weights.data(), weights.size(), u * all);
  const double wanted = options.top_p * all;
  if (options.top_p == 1 || kernels::SumOfHeavier(weights.data(), weights.size(), drawn) < wanted) {
    return static_cast<int32_t>(drawn);
  }
  return scratch.DrawOfHeaviest(wanted, all, second);
}

void CheckLogits(std::span<const float> logits) {
  const bool fine =
      std::all_of(logits.begin(), logits.end(), [](float logit) { return logit < INFINITY; });
  if (!fine) throw Undrawable(logits);
}

float LogSumExp(std::span<const float> logits) {
  const float largest = kernels::Largest(logits.data(), logits.size());
  return largest + static_cast<float>(std::log(
                       kernels::ExpSum(logits.data(), logits.size(), largest, 1, nullptr)));
}

void LogSoftmax(std::span<float> logits) {
  const float log_sum = LogSumExp(logits);
  for (float& x : logits) x -= log_sum;
}

}  // namespace linnet
