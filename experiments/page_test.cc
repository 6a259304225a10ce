#include "experiments/page.h"

#include <gtest/gtest.h>

namespace linnet::experiments {
namespace {

using nlohmann::json;

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
  EXPECT_EQ(Render("{{name}}, {{{name}}}", values), "a ? ?b?, a | <b>\n");
  EXPECT_EQ(Render("{{many}} {{few}} {{real}} {{none}} {{deep.er.est}}", values),
            "12,345 12 2.00 – found\n");
  EXPECT_EQ(Render("{{many|count}} {{few|bytes}} {{real|percent}} {{real|e2}} {{few|threads}} "
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
  EXPECT_EQ(Render("{{#rows}}{{x}}{{^last}}, {{/last}}{{/rows}}", values), "1, 2\n");
  EXPECT_EQ(Render("|{{#names}} {{.}} |{{/names}}", values), "| a | b |\n");
  EXPECT_EQ(Render("{{#no}}never{{/no}}{{#missing}}never{{/missing}}{{^no}}always{{/no}}", values),
            "always\n");
  EXPECT_EQ(Render("{{#one}}{{x}}{{/one}} {{x}}", values),
            "3 9\n");  // the inner one, then the outer
  // Tags alone on their lines leave no empty lines.
  EXPECT_EQ(Render("| x |\n|---|\n{{#rows}}\n| {{x}} |\n{{/rows}}\n\nEnd.\n", values),
            "| x |\n|---|\n| 1 |\n| 2 |\n\nEnd.\n");
}

TEST(Render, Paragraphs) {
  const std::string word(50, 'w');
  EXPECT_EQ(
      Render(word + "\n" + word + " " + word + "\n\n# " + word + " " + word + " " + word + "\n",
             {}),
      word + " " + word + "\n" + word + "\n\n# " + word + " " + word + " " + word + "\n");
  EXPECT_EQ(Render("```\na\n  b\n```\nc\nd\n", {}), "```\na\n  b\n```\nc d\n");
}

TEST(Render, RefusesMissingAndOddValues) {
  EXPECT_THROW(Render("{{gone}}", {{"x", 1}}), json::exception);
  EXPECT_THROW(Render("{{x|count}}", {{"x", {1, 2}}}), json::exception);
  EXPECT_THROW(Render("{{x}}", {{"x", json::object()}}), json::exception);
}

}  // namespace
}  // namespace linnet::experiments
