#include "linnet/plot/ticks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace linnet::plot {
namespace {

using ::testing::ElementsAre;

// The labels of Ticks(): at most `most` of them, or at most 2 if `most` is less.
std::vector<std::string> Labels(Range range, bool log, size_t most) {
  std::vector<std::string> labels;
  for (const Tick& tick : Ticks(range, log, most)) {
    if (!tick.label.empty()) labels.push_back(tick.label);
  }
  return labels;
}

TEST(Ticks, RoundNumbers) {
  EXPECT_THAT(Labels({0, 18720}, false, 9), ElementsAre("0", "5k", "10k", "15k"));
  EXPECT_THAT(Labels({0, 1e6}, false, 6), ElementsAre("0", "200k", "400k", "600k", "800k", "1M"));
  EXPECT_THAT(Labels({0, 2.1e6}, false, 5), ElementsAre("0", "500k", "1M", "1.5M", "2M"));
  EXPECT_THAT(Labels({0, 624}, false, 9),
              ElementsAre("0", "100", "200", "300", "400", "500", "600"));
  EXPECT_THAT(Labels({0, 5100}, false, 6),
              ElementsAre("0", "1000", "2000", "3000", "4000", "5000"));
  EXPECT_THAT(Labels({0.86, 3.25}, false, 6), ElementsAre("1.0", "1.5", "2.0", "2.5", "3.0"));
  EXPECT_THAT(Labels({-0.25, 0.25}, false, 5), ElementsAre("−0.2", "−0.1", "0", "0.1", "0.2"));
  EXPECT_THAT(Labels({-1.1e7, 1.1e7}, false, 3), ElementsAre("−10M", "0", "10M"));
  EXPECT_THAT(Labels({0, 0.00104}, false, 6),
              ElementsAre("0", "0.0002", "0.0004", "0.0006", "0.0008", "0.0010"));
  EXPECT_THAT(Labels({0, 5.2e-5}, false, 3), ElementsAre("0", "2·10⁻⁵", "4·10⁻⁵"));
  EXPECT_THAT(Labels({0, 1e20}, false, 3), ElementsAre("0", "0.5·10²⁰", "1.0·10²⁰"));
  EXPECT_THAT(Labels({1e6, 1e6 + 3}, false, 4),
              ElementsAre("1M", "1.000001M", "1.000002M", "1.000003M"));
}

TEST(Ticks, Logarithmic) {
  EXPECT_THAT(Labels({470, 72000}, true, 9),
              ElementsAre("500", "1k", "2k", "5k", "10k", "20k", "50k"));
  EXPECT_THAT(Labels({470, 72000}, true, 6), ElementsAre("1k", "10k"));
  EXPECT_THAT(Labels({0.005, 200}, true, 6), ElementsAre("0.01", "0.1", "1", "10", "100"));
  EXPECT_THAT(Labels({1e-9, 1e-3}, true, 4), ElementsAre("10⁻⁸", "10⁻⁶", "10⁻⁴"));
  EXPECT_THAT(Labels({1e-4, 1e-3}, true, 4), ElementsAre("10⁻⁴", "2·10⁻⁴", "5·10⁻⁴", "10⁻³"));
  // This range is too narrow for ticks at 1, 2 and 5.
  EXPECT_THAT(Labels({1.4, 3.1}, true, 4), ElementsAre("1.5", "2.0", "2.5", "3.0"));
  // Minor ticks lie between the labeled ones, in rising order.
  const std::vector<Tick> ticks = Ticks({1, 100}, true, 3);
  EXPECT_EQ(ticks.size(), 19u);
  for (size_t i = 1; i < ticks.size(); ++i) EXPECT_LT(ticks[i - 1].value, ticks[i].value);
}

TEST(Ticks, AnyRangeGetsFewTicks) {
  const double ends[] = {-1e100, -3e7, -1,        -1e-100, 0,    1e-100, 1e-9,
                         0.3,    1,    1.0000001, 7,       1e15, 1e100};
  for (double low : ends) {
    for (double high : ends) {
      if (low > high) continue;
      for (const bool log : {false, true}) {
        if (log && low <= 0) continue;
        const Range range = FitRange({low, high}, log);
        ASSERT_LT(range.low, range.high);
        for (size_t most : {0, 2, 3, 10}) {
          const size_t labels = Labels(range, log, most).size();
          EXPECT_LE(labels, std::max<size_t>(most, 2)) << low << " to " << high;
          if (most == 10) {
            EXPECT_GE(labels, 2u) << low << " to " << high << ", " << log;
          }
        }
      }
    }
  }
}

// Showable() returns its argument, 0 if it is tiny on a linear axis, or NaN if an axis cannot show
// it.
TEST(Showable, KeepsArithmeticInRange) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const bool log : {false, true}) {
    for (double bad : {std::nan(""), kInfinity, -kInfinity, 1e300, -1e300}) {
      EXPECT_TRUE(std::isnan(Showable(bad, log)));
    }
    EXPECT_EQ(Showable(2.5, log), 2.5);
  }
  EXPECT_EQ(Showable(1e-310, false), 0);
  EXPECT_EQ(Showable(-3, false), -3);
  for (double bad : {0.0, -3.0, 1e-310}) EXPECT_TRUE(std::isnan(Showable(bad, true)));
}

TEST(FitRange, LeavesRoom) {
  const Range steps = FitRange({10, 18000}, false);
  EXPECT_EQ(steps.low, 0);  // not below zero
  EXPECT_GT(steps.high, 18000);
  EXPECT_LT(steps.high, 19000);
  EXPECT_LT(FitRange({-3, 5}, false).low, -3);
  EXPECT_EQ(FitRange({-3, -1e-3}, false).high, 0);
  const Range one = FitRange({1.5, 1.5}, false);
  EXPECT_LT(one.low, 1.5);
  EXPECT_GT(one.high, 1.5);
  const Range log = FitRange({1, 100}, true);
  EXPECT_LT(log.low, 1);
  EXPECT_GT(log.low, 0.5);
}

}  // namespace
}  // namespace linnet::plot
