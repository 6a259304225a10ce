#include "linnet/tasks/speech/ctc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "linnet/error.h"
#include "linnet/rng.h"

namespace linnet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Labels = std::vector<int>;

std::vector<float> RandomLogProbs(size_t frames, size_t classes, uint64_t stream) {
  Philox rng(21, stream);
  std::vector<float> x(frames * classes);
  for (size_t t = 0; t < frames; ++t) {
    double sum = 0;
    for (size_t c = 0; c < classes; ++c) sum += std::exp(x[t * classes + c] = 2 * rng.Normal());
    for (size_t c = 0; c < classes; ++c) x[t * classes + c] -= static_cast<float>(std::log(sum));
  }
  return x;
}

// The sequence that a path spells (ctc.h).
Labels Collapsed(const Labels& path, int blank) {
  Labels labels;
  for (size_t t = 0; t < path.size(); ++t) {
    if (path[t] != blank && (t == 0 || path[t] != path[t - 1])) labels.push_back(path[t]);
  }
  return labels;
}

// Probabilities of all sequences, by enumeration of all paths.
std::map<Labels, double> AllSequences(const std::vector<float>& log_probs, size_t classes,
                                      int blank) {
  const size_t frames = log_probs.size() / classes;
  std::map<Labels, double> sums;
  Labels path(frames);
  size_t paths = 1;
  for (size_t t = 0; t < frames; ++t) paths *= classes;
  for (size_t number = 0; number < paths; ++number) {
    double log_probability = 0;
    size_t rest = number;
    for (size_t t = 0; t < frames; ++t, rest /= classes) {
      path[t] = static_cast<int>(rest % classes);
      log_probability += log_probs[t * classes + rest % classes];
    }
    sums[Collapsed(path, blank)] += std::exp(log_probability);
  }
  return sums;
}

TEST(Ctc, AWideBeamIsExact) {
  for (uint64_t stream = 0; stream < 20; ++stream) {
    const size_t frames = 1 + stream % 6, classes = 2 + stream % 3;
    const int blank = static_cast<int>(stream % classes);
    const auto log_probs = RandomLogProbs(frames, classes, stream);
    const auto sums = AllSequences(log_probs, classes, blank);
    const auto decoded = BeamDecode(log_probs, classes, blank, 100'000);
    EXPECT_EQ(decoded.size(), sums.size());
    double before = std::numeric_limits<double>::infinity(), total = 0;
    for (const Decoded& d : decoded) {
      ASSERT_TRUE(sums.contains(d.labels));
      EXPECT_NEAR(std::exp(d.log_probability), sums.at(d.labels), 1e-9);
      EXPECT_LE(d.log_probability, before);
      EXPECT_EQ(d.frames.size(), d.labels.size());
      EXPECT_TRUE(std::is_sorted(d.frames.begin(), d.frames.end()));
      before = d.log_probability, total += std::exp(d.log_probability);
    }
    EXPECT_NEAR(total, 1, 1e-5);  // a tolerance for float log-probabilities
    // A beam of width 2 returns at most 2 sequences, and never overestimates a probability.
    const auto narrow = BeamDecode(log_probs, classes, blank, 2);
    EXPECT_LE(narrow.size(), 2u);
    EXPECT_LE(std::exp(narrow[0].log_probability), sums.at(narrow[0].labels) + 1e-9);
  }
}

TEST(Ctc, GreedyTakesTheLikeliestPath) {
  // The most likely path is 1 1 0 1 2 2, with the blank 0.
  std::vector<float> log_probs;
  for (const size_t best : {1, 1, 0, 1, 2, 2}) {
    for (size_t c = 0; c < 3; ++c) log_probs.push_back(c == best ? std::log(0.8f) : std::log(0.1f));
  }
  const Decoded decoded = GreedyDecode(log_probs, 3, 0);
  EXPECT_THAT(decoded.labels, ElementsAre(1, 1, 2));
  EXPECT_THAT(decoded.frames, ElementsAre(0, 3, 4));
  EXPECT_NEAR(decoded.log_probability, 6 * std::log(0.8), 1e-5);
  const auto beam = BeamDecode(log_probs, 3, 0, 8);
  EXPECT_EQ(beam[0].labels, decoded.labels);
  EXPECT_EQ(beam[0].frames, decoded.frames);
  EXPECT_THAT(GreedyDecode({}, 3, 0).labels, IsEmpty());
  EXPECT_THAT(BeamDecode({}, 3, 0, 4)[0].labels, IsEmpty());
}

// Greedy decoding misses a sequence that many paths of small probability spell.
TEST(Ctc, BeamSumsPathProbabilities) {
  const std::vector<float> log_probs = {std::log(0.6f), std::log(0.4f), std::log(0.6f),
                                        std::log(0.4f)};
  EXPECT_THAT(GreedyDecode(log_probs, 2, 0).labels, IsEmpty());           // probability 0.36
  EXPECT_THAT(BeamDecode(log_probs, 2, 0, 4)[0].labels, ElementsAre(1));  // probability 0.64
}

TEST(Ctc, ImpossibleClassesAreLeftOut) {
  const float never = -std::numeric_limits<float>::infinity();
  const std::vector<float> log_probs = {never, 0, never, never, 0, never};
  const auto decoded = BeamDecode(log_probs, 3, 0, 10);
  EXPECT_THAT(decoded[0].labels, ElementsAre(1));
  EXPECT_NEAR(decoded[0].log_probability, 0, 1e-9);
}

TEST(Ctc, RefusesInvalidArguments) {
  const std::vector<float> five(5);
  EXPECT_THROW(GreedyDecode(five, 2, 0), Error);
  EXPECT_THROW(GreedyDecode(five, 0, 0), Error);
  EXPECT_THROW(GreedyDecode(five, 5, 5), Error);
  EXPECT_THROW(BeamDecode(five, 5, -1, 3), Error);
  EXPECT_THROW(BeamDecode(five, 5, 0, 0), Error);
}

TEST(ErrorRate, CountsAlignedLabels) {
  EXPECT_THAT(Align(Labels{1, 2, 3}, Labels{1, 3}),
              ElementsAre(Aligned{1, 1}, Aligned{2, -1}, Aligned{3, 3}));
  EXPECT_THAT(Align(Labels{}, Labels{7}), ElementsAre(Aligned{-1, 7}));
  ErrorRate errors;
  EXPECT_EQ(errors.rate(), 0);
  errors.Add(Labels{1, 2, 3, 4}, Labels{1, 5, 3});  // one substitution, one deletion
  errors.Add(Labels{1, 2}, Labels{1, 2});           // no error
  errors.Add(Labels{1, 2}, Labels{9, 1, 2});        // one insertion
  EXPECT_EQ(errors.substitutions(), 1u);
  EXPECT_EQ(errors.deletions(), 1u);
  EXPECT_EQ(errors.insertions(), 1u);
  EXPECT_DOUBLE_EQ(errors.rate(), 3.0 / 8);
  EXPECT_EQ(errors.confusions().at({2, 5}), 1u);
  EXPECT_EQ(errors.confusions().at({4, -1}), 1u);
  EXPECT_EQ(errors.confusions().at({-1, 9}), 1u);
  EXPECT_EQ(errors.confusions().size(), 3u);
  ErrorRate nothing_said;
  nothing_said.Add(Labels{}, Labels{1});
  EXPECT_TRUE(std::isinf(nothing_said.rate()));
}

TEST(ErrorRate, IsAMetric) {
  Philox rng(5, 6);
  const auto random = [&] {
    Labels labels(rng.Below(8));
    for (int& label : labels) label = static_cast<int>(rng.Below(3));
    return labels;
  };
  const auto distance = [](const Labels& a, const Labels& b) {
    ErrorRate errors;
    errors.Add(a, b);
    return errors.errors();
  };
  for (int i = 0; i < 200; ++i) {
    const Labels a = random(), b = random(), c = random();
    EXPECT_EQ(distance(a, b), distance(b, a));
    EXPECT_EQ(distance(a, b) == 0, a == b);
    EXPECT_LE(distance(a, c), distance(a, b) + distance(b, c));
    EXPECT_GE(distance(a, b), std::max(a.size(), b.size()) - std::min(a.size(), b.size()));
  }
}

}  // namespace
}  // namespace linnet
