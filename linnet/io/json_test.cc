#include "linnet/io/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace linnet {
namespace {

std::string Fault(const std::string& text) {
  std::string fault = "from before";
  const nlohmann::json value = ParseJson(text, 3, fault);
  EXPECT_EQ(fault.empty(), !value.is_null()) << text;
  return fault;
}

TEST(Json, ParsesObjects) {
  std::string fault;
  EXPECT_EQ(ParseJson(R"({"a": {"a": 1}, "b": [1, 2]})", 3, fault)["a"]["a"], 1);
  EXPECT_EQ(fault, "");
  // The same key in two objects is valid.
  EXPECT_EQ(Fault(R"([{"a": 1}, {"a": 2}])"), "");
}

TEST(Json, ErrorsNameTheFault) {
  EXPECT_EQ(Fault(""), "is not valid JSON");
  EXPECT_EQ(Fault("{\"a\": 1} and more"), "is not valid JSON");
  EXPECT_EQ(Fault("{\"a\": \"\xff\"}"), "is not valid JSON");
  EXPECT_EQ(Fault(R"({"lr": 1, "lr": 2})"), "has 'lr' twice");
  EXPECT_EQ(Fault(R"({"b": [{"l\nr": 1, "l\nr": 2}]})"), "has 'l?r' twice");
  EXPECT_EQ(Fault(R"({"a": [[[[1]]]]})"), "is nested too deeply");
  EXPECT_EQ(Fault(std::string(1'000'000, '[')), "is nested too deeply");
}

TEST(Json, KeepsTheOrderOfKeys) {
  std::string fault;
  EXPECT_EQ(ParseOrderedJson(R"({"b": 1, "a": 2})", 3, fault).dump(), R"({"b":1,"a":2})");
  EXPECT_TRUE(ParseOrderedJson("[[[[1]]]]", 3, fault).is_null());
  EXPECT_EQ(fault, "is nested too deeply");
  std::string many = "{";
  for (int i = 0; i < 1001; ++i) many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\": 1";
  EXPECT_TRUE(ParseOrderedJson(many + "}", 3, fault).is_null());
  EXPECT_EQ(fault, "has an object with more than 1000 keys");
  EXPECT_FALSE(ParseJson(many + "}", 3, fault).is_null());
}

TEST(Json, EscapesControlCharacters) {
  EXPECT_EQ(Quote("a\x1b[2J\x7f\u009b31m\u00a0\u00e9"), "'a?[2J??31m\u00a0\u00e9'");
  EXPECT_EQ(Brief(std::string(1000, 'x')), std::string(80, 'x') + "...");
  EXPECT_EQ(Brief(std::string(79, 'x') + "\u00e9"), std::string(79, 'x') + "...");
  EXPECT_EQ(Brief(std::string(78, 'x') + "\u00e9"), std::string(78, 'x') + "\u00e9");
  EXPECT_EQ(EscapeControls("[\"\x7f\u009b\u0080\u009f\u00a0\u00e9\"]"),
            "[\"\\u007f\\u009b\\u0080\\u009f\u00a0\u00e9\"]");
  EXPECT_EQ(EscapeControls("\xc2"), "\xc2");
}

TEST(Json, ListsAreCutShort) {
  EXPECT_EQ(QuoteAll({"a", "b"}), "'a', 'b'");
  const std::string long_list = QuoteAll(std::vector<std::string>(12, "a"));
  EXPECT_EQ(long_list.substr(long_list.size() - 19), "'a', 'a' and 2 more");
}

}  // namespace
}  // namespace linnet
