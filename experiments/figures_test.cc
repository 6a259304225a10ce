#include "experiments/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace linnet::experiments {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

// A figure with one panel of these series.
json Described(const json& series) {
  return {{{"name", "a"}, {"panels", {{{"x", "steps"}, {"y", "loss"}, {"series", series}}}}}};
}

const json kValues = {{"rows",
                       {{{"label", "linear"}, {"curve", {{1, 5.0}, {2, 4.0}}}},
                        {{"label", "linear"}, {"curve", {{1, 6.0}, {2, nullptr}}}},
                        {{"label", "LSH-4"}, {"curve", json::array()}}}},
                      {"title", "a <title>"},
                      {"looks", {{"linear", {0, "circle"}}}},
                      {"sets", {{{"name", "first"}}, {{"name", "second"}}}}};

TEST(DescribedFigures, ASeriesForEachElement) {
  const json described = Described({{{"each", "rows"},
                                     {"label", "label"},
                                     {"x", "10 * curve.*.0"},
                                     {"y", "curve.*.1"},
                                     {"style", "both"}}});
  json values = kValues;
  values["rows"][1]["curve"][1][1] = 3;
  const auto figures = DescribedFigures(described, {values});
  ASSERT_EQ(figures.size(), 1u);
  EXPECT_EQ(figures[0].name, "a");
  const std::vector<plot::Series>& series = figures[0].figure.panels.at(0).series;
  ASSERT_EQ(series.size(), 2u);  // LSH-4 has no points
  EXPECT_THAT(series[0].x, ElementsAre(10, 20));
  EXPECT_THAT(series[0].y, ElementsAre(5, 4));
  EXPECT_EQ(series[0].style, plot::Style::kLineAndPoints);
  // Both series have the look of linear attention; the legend has its label once.
  EXPECT_EQ(series[0].label, "linear");
  EXPECT_EQ(series[1].label, "");
  EXPECT_EQ(series[0].color, series[1].color);
}

TEST(DescribedFigures, LooksAndTitles) {
  json described = Described({{{"label", "title"},
                               {"x", "1"},
                               {"y", "2"},
                               {"color", 6},
                               {"pale", true},
                               {"dotted", true},
                               {"legend", false}}});
  described[0]["title"] = "{{{title}}}";
  described[0]["panels"][0]["log"] = "y";
  const plot::Figure figure = DescribedFigures(described, {kValues}).at(0).figure;
  EXPECT_EQ(figure.title, "a <title>");
  const plot::Plot& panel = figure.panels.at(0);
  EXPECT_FALSE(panel.x.log);
  EXPECT_TRUE(panel.y.log);
  const plot::Series& series = panel.series.at(0);
  EXPECT_EQ(series.label, "");
  EXPECT_EQ(series.color, 6);
  EXPECT_TRUE(series.faint && series.dotted);
  EXPECT_EQ(series.style, plot::Style::kLine);
}

TEST(DescribedFigures, AFigureForEachElement) {
  json described = Described(json::array());
  described[0]["each"] = "sets", described[0]["name"] = "figure-{{name}}";
  const auto figures = DescribedFigures(described, {kValues});
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[1].name, "figure-second");
  described[0]["each"] = "missing";
  EXPECT_TRUE(DescribedFigures(described, {kValues}).empty());
}

TEST(DescribedFigures, RefusesValuesOfOtherTypes) {
  for (const char* y : {"title", "gone", "rows"}) {
    const json described = Described({{{"label", "title"}, {"x", "1"}, {"y", y}}});
    EXPECT_THROW(DescribedFigures(described, {kValues}), json::exception) << y;
  }
}

}  // namespace
}  // namespace linnet::experiments
