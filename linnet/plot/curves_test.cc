#include "linnet/plot/curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "linnet/io/test_util.h"

namespace linnet::plot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunLog MakeRun(bool validated) {
  RunLog run;
  run.path = "runs/a/metrics.jsonl";
  run.last_step = 400;
  Track lr{"lr"}, loss{"loss"}, validation{"validation_loss"};
  for (int i = 1; i <= 4; ++i) {
    for (Track* track : {&lr, &loss, &validation}) {
      track->step.push_back(100 * i);
      track->seconds.push_back(600 * i);
      track->value.push_back(5 - i);
    }
  }
  run.tracks = {lr, loss};
  if (validated) run.tracks.push_back(validation);
  return run;
}

TEST(RunCurves, TrainingBehindValidation) {
  const Figure figure = RunCurves({MakeRun(true), MakeRun(false)}, {.labels = {"a", "b"}});
  ASSERT_EQ(figure.panels.size(), 1u);
  const Plot& plot = figure.panels[0];
  EXPECT_EQ(plot.x.label, "step");
  EXPECT_EQ(plot.y.label, "loss");
  ASSERT_EQ(plot.series.size(), 3u);
  EXPECT_TRUE(plot.series[0].faint);
  EXPECT_EQ(plot.series[0].label, "");
  EXPECT_EQ(plot.series[1].label, "a");
  EXPECT_EQ(plot.series[1].style, Style::kLineAndPoints);
  EXPECT_EQ(plot.series[0].color, plot.series[1].color);
  EXPECT_FALSE(plot.series[2].faint);  // no validation curve in front of it
  EXPECT_EQ(plot.series[2].label, "b");
  EXPECT_NE(plot.series[2].color, plot.series[1].color);
  EXPECT_EQ(figure.subtitle, "points: validation; faint: training");
  EXPECT_EQ(figure.title, "");
}

TEST(RunCurves, OneRunNeedsNoLegend) {
  const Figure figure = RunCurves({MakeRun(true)}, {.labels = {"a"}, .smooth = 3});
  EXPECT_EQ(figure.title, "a");
  for (const Series& series : figure.panels[0].series) EXPECT_EQ(series.label, "");
  EXPECT_THAT(figure.subtitle, HasSubstr("mean of 3 records"));
}

TEST(RunCurves, AgainstTimeAndInPart) {
  const Figure figure =
      RunCurves({MakeRun(true)},
                {.labels = {"a"}, .y = {"lr", "validation_loss"}, .time = true, .from = 1200});
  ASSERT_EQ(figure.panels.size(), 2u);
  EXPECT_EQ(figure.panels[0].x.label, "training time (minutes)");
  EXPECT_EQ(figure.panels[0].y.label, "learning rate");
  EXPECT_EQ(figure.panels[1].y.label, "validation loss");
  ASSERT_EQ(figure.panels[1].series.size(), 1u);
  EXPECT_THAT(figure.panels[1].series[0].x, ElementsAre(20, 30, 40));
  EXPECT_THAT(figure.panels[1].series[0].y, ElementsAre(3, 2, 1));
}

TEST(RunCurves, Refusals) {
  EXPECT_THAT(ErrorOf([] { RunCurves({MakeRun(true)}, {.labels = {"a"}, .y = {"mood"}}); }),
              HasSubstr("has no metric 'mood'; it has lr, loss, validation_loss"));
  EXPECT_THAT(ErrorOf([] { RunCurves({MakeRun(true)}, {.labels = {"a"}, .from = 500}); }),
              HasSubstr("steps go from 0 to 400"));
}

TEST(MainMetric, TellsOfTheTask) {
  RunLog run = MakeRun(true);
  EXPECT_EQ(MainMetric(run), "loss");
  run.tracks.erase(run.tracks.begin() + 1);
  EXPECT_EQ(MainMetric(run), "validation_loss");
  run.tracks.pop_back();
  EXPECT_EQ(MainMetric(run), "lr");
}

TEST(ShortLabels, TellRunsApart) {
  EXPECT_THAT(ShortLabels({"runs/digits"}), ElementsAre("digits"));
  EXPECT_THAT(ShortLabels({"runs/a/", "runs/b/metrics.jsonl", "c.jsonl"}),
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(ShortLabels({"x/a", "y/a", "b"}), ElementsAre("x/a", "y/a", "b"));
  EXPECT_THAT(ShortLabels({"x/a", "x/a"}), ElementsAre("a", "a"));
  EXPECT_THAT(ShortLabels({"/", "/a"}), ElementsAre("/", "a"));
}

TEST(Smooth, Means) {
  EXPECT_THAT(Smooth({1, 2, 6}, 1), ElementsAre(1, 2, 6));
  // The first value stays; the last is averaged with the values before it.
  EXPECT_THAT(Smooth({9, 3, 0, 3, 6}, 3), ElementsAre(9, 4, 2, 3, 4.5));
  EXPECT_THAT(Smooth({0, 4, 0, 4}, 2), ElementsAre(0, 2, 2, 4));
  const std::vector<double> gap = Smooth({1, 3, std::nan(""), 5, 5}, 3);
  EXPECT_THAT(std::vector<double>(gap.begin(), gap.begin() + 2), ElementsAre(1, 2));
  EXPECT_TRUE(std::isnan(gap[2]));
  EXPECT_EQ(gap[3], 5);
  EXPECT_THAT(Smooth({}, 5), ElementsAre());
}

}  // namespace
}  // namespace linnet::plot
