#include "experiments/page.h"

#include <gtest/gtest.h>

#include "linnet/error.h"

namespace linnet::experiments {
namespace {

using nlohmann::json;

std::string Page(const std::string& text, const json& values) { return Render(text, {values}); }

TEST(Digits, ThreeThatCount) {
  EXPECT_EQ(Digits(1234.4), "1,234");
  EXPECT_EQ(Digits(12345678), "12,345,678");
  EXPECT_EQ(Digits(999.4), "999");
  EXPECT_EQ(Digits(12.345), "12.3");
  EXPECT_EQ(Digits(1), "1.00");
  EXPECT_EQ(Digits(0.1234), "0.123");
  EXPECT_EQ(Digits(0.00123), "0.0012");
  EXPECT_EQ(Digits(0), "0.000");
}

TEST(Render, Values) {
  const json values = {{"name", "a | <b>"}, {"many", 12345},
                       {"few", 12},         {"real", 2.0},
                       {"none", nullptr},   {"deep", {{"er", {{"est", "found"}}}}}};
  EXPECT_EQ(Page("{{name}}, {{{name}}}", values), "a ? ?b?, a | <b>\n");
  EXPECT_EQ(Page("{{many}} {{few}} {{real}} {{none}} {{deep.er.est}}", values),
            "12,345 12 2.00 – found\n");
  EXPECT_EQ(Page("{{a.last.1}} {{b.last}}", {{"a", {{1, 2}, {3, 4}}}, {"b", json::array()}}),
            "4 –\n");
  EXPECT_EQ(Page("{{many|count}} {{few|bytes}} {{real|percent}} {{real|%.2e}} {{few|threads}} "
                 "{{none|count}}",
                 values),
            "12.3k 12 B 200 2.00e+00 12 threads –\n");
}

TEST(Render, Sections) {
  const json values = {{"rows", {{{"x", 1}}, {{"x", 2}, {"last", true}}}},
                       {"names", {"a", "b"}},
                       {"no", false},
                       {"one", {{"x", 3}}},
                       {"x", 9}};
  EXPECT_EQ(Page("{{#rows}}{{x}}{{^last}}, {{/last}}{{/rows}}", values), "1, 2\n");
  EXPECT_EQ(Page("|{{#names}} {{.}} |{{/names}}", values), "| a | b |\n");
  EXPECT_EQ(Page("{{#no}}never{{/no}}{{#missing}}never{{/missing}}{{^no}}always{{/no}}", values),
            "always\n");
  EXPECT_EQ(Page("{{#one}}{{x}}{{/one}} {{x}}", values),
            "3 9\n");  // x of the section, then of the page
  // Tags alone on their lines leave no empty lines.
  EXPECT_EQ(Page("| x |\n|---|\n{{#rows}}\n| {{x}} |\n{{/rows}}\n\nEnd.\n", values),
            "| x |\n|---|\n| 1 |\n| 2 |\n\nEnd.\n");
}

TEST(Render, SeparatorsAndEquality) {
  const json values = {{"rows", {{{"x", 1}}, {{"x", 2}}}}, {"scale", "small"}, {"count", 1}};
  EXPECT_EQ(Page("{{#rows|, }}{{x}}{{/rows}}", values), "1, 2\n");
  EXPECT_EQ(
      Page("{{#scale = small}}yes{{/scale = small}}{{#scale = paper}}no{{/scale = paper}}", values),
      "yes\n");
  EXPECT_EQ(
      Page("{{^scale = paper}}{{scale}}{{/scale = paper}} {{#count = 1}}one{{/count = 1}}", values),
      "small one\n");
}

TEST(Evaluate, Expressions) {
  const json about = {{"batch", 10}, {"a-b", 5}},
             values = {{"curve", {{100, 2.5}, {200, 1.5}}},
                       {"each", 0.5},
                       {"none", nullptr},
                       {"beam of 16", 7},
                       {"runs", {{{"loss", 4}}, {{"loss", 6}}}},
                       {"empty", json::array()}};
  const Scope outer{about}, scope{values, &outer};
  const auto value = [&](const char* text) { return Evaluate(text, scope); };
  EXPECT_EQ(value("2 + 3 * 4 - 6 / 2"), 11);
  EXPECT_EQ(value("(2 + 3) * 4"), 20);
  EXPECT_EQ(value("a-b - 1"), 4);
  EXPECT_EQ(value("beam of 16"), 7);
  EXPECT_EQ(value("curve.*.0 * each / batch"), json({5, 10}));
  EXPECT_EQ(value("curve.1.1"), 1.5);
  EXPECT_EQ(value("last(curve.*.1) / first(curve.*.1)"), 0.6);
  EXPECT_EQ(value("max(runs.*.loss) - min(runs.*.loss)"), 2);
  EXPECT_EQ(value("mean(runs.*.loss)"), 5);
  EXPECT_EQ(value("count(runs)"), 2);
  EXPECT_EQ(value("max(1, floor(7.9 / 2))"), 3);
  EXPECT_EQ(value("or(none, 0, batch)"), 10);
  // The first name of a path decides where it is looked up.
  const json own = {{"runs", {{{"loss", 1}}}}};
  const Scope inner{own, &scope};
  EXPECT_EQ(Evaluate("runs.0.loss", inner), 1);
  EXPECT_EQ(Evaluate("runs.1.loss", inner), nullptr);
  // Arithmetic with null gives null, as does a field of null, or of an element beyond a list's end.
  for (const char* text : {"none * 2", "none.field", "3 / none", "max(empty)", "curve.7.0"}) {
    EXPECT_EQ(value(text), nullptr) << text;
  }
  for (const char* text : {"gone", "curve.*.gone", "each + runs.*", "scale"}) {
    EXPECT_THROW(value(text), json::exception) << text;
  }
  for (const char* text : {"odd(1)", "max(1", "1 + 2)"}) EXPECT_THROW(value(text), Error) << text;
}

TEST(Render, Paragraphs) {
  const std::string word(50, 'w');
  EXPECT_EQ(
      Page(word + "\n" + word + " " + word + "\n\n# " + word + " " + word + " " + word + "\n", {}),
      word + " " + word + "\n" + word + "\n\n# " + word + " " + word + " " + word + "\n");
  EXPECT_EQ(Page("```\na\n  b\n```\nc\nd\n", {}), "```\na\n  b\n```\nc d\n");
}

TEST(Render, PlotsForDarkPagesToo) {
  EXPECT_EQ(Page("![Loss of {{x}}](a-{{x}}.svg)\n", {{"x", "b"}}),
            "<picture>\n<source media=\"(prefers-color-scheme: dark)\" srcset=\"a-b-dark.svg\">\n"
            "<img alt=\"Loss of b\" src=\"a-b.svg\">\n</picture>\n");
}

TEST(Render, RefusesMissingAndOddValues) {
  EXPECT_THROW(Page("{{gone}}", {{"x", 1}}), json::exception);
  EXPECT_THROW(Page("{{x|count}}", {{"x", {1, 2}}}), json::exception);
  EXPECT_THROW(Page("{{x}}", {{"x", json::object()}}), json::exception);
}

}  // namespace
}  // namespace linnet::experiments
