#include "linnet/tasks/text/json_schema.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "linnet/base/utf8.h"
#include "linnet/tasks/text/grammar_test_util.h"

namespace linnet {
namespace {

using json = nlohmann::ordered_json;

void Check(const std::string& schema, const std::vector<std::string>& right,
           const std::vector<std::string>& wrong) {
  SCOPED_TRACE(schema);
  const Grammar grammar = Grammar::OfJsonSchema(schema);
  for (const std::string& text : right) EXPECT_TRUE(Accepts(grammar, text)) << text;
  for (const std::string& text : wrong) EXPECT_FALSE(Accepts(grammar, text)) << text;
}

std::string SchemaFault(const std::string& schema) {
  return FaultOf(Grammar::OfJsonSchema, schema);
}

TEST(JsonSchema, AnyValue) {
  Check("{}",
        {"1", "-0.5e+10", "\"\"", R"("a\n\u6d77\ud83d\ude00海😀\/")", "[]", "[1, [true],null]", "{}",
         R"({"a": {"b":[]}, "":1})"},
        {"",          "01",          "1.",          ".5",   "+1",   "1e",      "\"",       "\"\n\"",
         R"("\x41")", R"("\ud83d")", R"("\ude00")", "[1,]", "[,1]", "{\"a\"}", "{\"a\":}", "{a:1}",
         "nul",       "1 ",          " 1",          "NaN",  "[ ]",  "[1 ,2]",  "[1,  2]",  "{\n}"});
  Check("true", {"1", "{}"}, {"x"});
  Check(R"({"type": "object"})", {"{}", R"({"a": [1]})"}, {"[]", "1", "\"a\""});
  EXPECT_TRUE(Accepts(Grammar::OfJsonObjects(), R"({"a": [1]})"));
  EXPECT_FALSE(Accepts(Grammar::OfJsonObjects(), "[]"));
}

TEST(JsonSchema, Types) {
  Check(R"({"type": "string"})", {"\"a\""}, {"1", "null"});
  Check(R"({"type": "string", "minLength": 2, "maxLength": 3})",
        {"\"ab\"", "\"海上月\"", R"("\n\u0041")"}, {"\"a\"", "\"abcd\"", "\"\""});
  Check(R"({"type": "boolean"})", {"true", "false"}, {"True", "1"});
  Check(R"({"type": "null"})", {"null"}, {"0"});
  Check(R"({"type": "number"})", {"0", "-1.50", "1e5"}, {"\"1\"", "--1"});
  Check(R"({"type": ["string", "null"], "maxLength": 1, "description": "x"})",
        {"null", "\"a\"", "\"\""}, {"\"ab\"", "1"});
  Check(R"({"enum": ["red", 1, null, {"a": [1]}, "海"]})",
        {"\"red\"", "1", "null", R"({"a":[1]})", "\"海\""}, {"red", "2", "\"blue\""});
  Check(R"({"const": "a\"b\n"})", {R"("a\"b\n")"}, {"\"a\""});
  Check(R"({"anyOf": [{"type": "integer"}, {"const": "x"}]})", {"5", "\"x\""}, {"\"y\"", "1.5"});
  Check(R"({"allOf": [{"type": "integer"}]})", {"5"}, {"\"x\""});
  Check(R"({"type": "string", "enum": [1, "x", null]})", {"\"x\""}, {"1", "null"});
  Check(R"({"type": ["integer", "null"], "enum": [1, 2.5, 3.0, null]})", {"1", "3.0", "null"},
        {"2.5"});
  Check(R"({"type": ["integer", "string"], "minimum": 5, "maxLength": 1})", {"5", "\"a\""},
        {"4", "\"ab\""});
}

// Every integer from -1100 to 1100, for many limits.
TEST(JsonSchema, LimitsOfIntegersAreExact) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const int a = static_cast<int>(random() % 2200) - 1100;
    const int b = a + static_cast<int>(random() % (round % 2 == 0 ? 30 : 1500));
    const std::string schema =
        json({{"type", "integer"}, {"exclusiveMinimum", a - 1}, {"maximum", b}}).dump();
    const Grammar grammar = Grammar::OfJsonSchema(schema);
    for (int i = -1100; i <= 1100; ++i) {
      ASSERT_EQ(Accepts(grammar, std::to_string(i)), i >= a && i <= b) << schema << " " << i;
    }
  }
  Check(R"({"type": "integer"})", {"0", "-1", "123456789012345"}, {"-0", "00", "1.0", "1e3"});
  Check(R"({"type": "integer", "minimum": 98})", {"98", "99", "100", "98765"}, {"97", "-98", "9"});
  Check(R"({"type": "integer", "exclusiveMaximum": -5})", {"-6", "-10"}, {"-5", "0", "6"});
  Check(R"({"type": "integer", "minimum": -9007199254740991, "maximum": 1e300})",
        {"0", "-999999999999999", "999999999999999"}, {"1000000000000000"});
  EXPECT_NE(SchemaFault(R"({"type": "integer", "minimum": 3, "maximum": 2})").find("no integer"),
            std::string::npos);
}

// Decimals of up to four places around the limits, for many limits.
TEST(JsonSchema, LimitsOfNumbersAreExact) {
  std::mt19937 random(5);
  const auto draw = [&](int count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  const auto decimal = [](int64_t units, int places) {  // units / 10^places
    std::string digits = std::to_string(std::abs(units));
    const auto width = static_cast<size_t>(places);
    if (digits.size() <= width) digits.insert(0, width + 1 - digits.size(), '0');
    if (places > 0) digits.insert(digits.size() - width, ".");
    return (units < 0 ? "-" : "") + digits;
  };
  for (int round = 0; round < 80; ++round) {
    const int places = draw(4);
    const double scale = std::pow(10, places);
    const int a = draw(300) - 150, b = a + 1 + draw(200);
    const bool low = draw(4) > 0, high = !low || draw(4) > 0, above = draw(2), below = draw(2);
    json schema = {{"type", "number"}};
    if (low) schema[above ? "exclusiveMinimum" : "minimum"] = a / scale;
    if (high) schema[below ? "exclusiveMaximum" : "maximum"] = b / scale;
    const Grammar grammar = Grammar::OfJsonSchema(schema.dump());
    for (int p = 0; p <= 4; ++p) {
      for (int i = 0; i < 120; ++i) {
        const double limit = (i % 2 == 0 ? a : b) / scale * std::pow(10, p);
        const int64_t near = i < 90 ? i / 2 - 22 : draw(100'000) - 50'000;
        const std::string text = decimal(std::llround(limit) + near, p);
        const double x = std::stod(text);
        const bool fits = (!low || (above ? x > a / scale : x >= a / scale)) &&
                          (!high || (below ? x < b / scale : x <= b / scale));
        ASSERT_EQ(Accepts(grammar, text), fits) << schema << " " << text;
      }
    }
  }
  Check(R"({"type": "number", "minimum": 0, "maximum": 1})",
        {"0", "1", "0.5", "0.00000000000001", "1.0", "0.0"},
        {"-0.1", "1.1", "01", ".5", "0.", "1.00000000000001", "1e-3", "2"});
  Check(R"({"type": "number", "exclusiveMinimum": 0})",
        {"0.01", "0.000000000000001", "999999999999999.5", "3"},
        {"0", "0.0", "0.000", "-0", "-1", "1000000000000000"});
  Check(R"({"type": "number", "maximum": -2.5, "exclusiveMinimum": -1e300})",
        {"-2.5", "-2.50000000000001", "-3", "-999999999999999", "-2.500"},
        {"-2.4", "2.5", "0", "-2"});
  Check(R"({"type": "number", "minimum": 1e-7, "maximum": 2e-7})", {"0.0000001", "0.00000015"},
        {"0", "0.0000003", "0.00000009"});
  Check(R"({"type": ["number", "null"], "minimum": 0.5})", {"0.5", "null", "7"}, {"0.4", "-1"});
  Check(R"({"type": "number", "minimum": 3, "maximum": 3})", {"3"}, {"3.1", "2.9", "4"});
  EXPECT_NE(
      SchemaFault(R"({"type": "number", "minimum": 3, "exclusiveMaximum": 3})").find("no num"),
      std::string::npos);
  EXPECT_NE(SchemaFault(R"({"type": "number", "minimum": 1e15})").find("no number"),
            std::string::npos);
  EXPECT_NE(SchemaFault(R"({"type": "number", "minimum": 1e-20})").find("more than 15 digits"),
            std::string::npos);
  EXPECT_NE(SchemaFault(R"({"type": "number", "maximum": 123456789012.3456})").find("15 digits"),
            std::string::npos);
  EXPECT_NE(SchemaFault(R"({"type": "number", "minimum": "0"})").find("must be a number"),
            std::string::npos);
}

TEST(JsonSchema, Arrays) {
  Check(R"({"items": {"type": "integer"}})", {"[]", "[1]", "[1, 2,3]"}, {"[\"a\"]", "[1 2]", "1"});
  Check(R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
        {"[1,2]", "[1,2,3]"}, {"[]", "[1]", "[1,2,3,4]"});
  Check(R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"});
  Check(R"({"type": "array", "items": {"type": "null"}, "maxItems": 1})", {"[]", "[null]"},
        {"[null,null]"});
  Check(R"({"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false})",
        {"[\"a\",1]"}, {"[]", "[\"a\"]", "[\"a\",1,2]", "[1,\"a\"]"});
  Check(R"({"prefixItems": [{"type": "string"}], "items": {"type": "null"}, "maxItems": 2})",
        {"[\"a\"]", "[\"a\",null]"}, {"[\"a\",null,null]", "[null]"});
}

TEST(JsonSchema, ObjectsHaveTheirPropertiesInOrder) {
  const std::string properties =
      R"("properties": {"b": {"type": "integer"}, "a": {"type": "string"}, "c": {"type": "null"}})";
  Check("{" + properties + R"(, "required": ["b", "c"]})",
        {R"({"b":1,"c":null})", R"({"b": 1, "a": "x", "c": null})"},
        {R"({"c":null,"b":1})", R"({"b":1})", R"({"b":1,"a":"x"})", R"({"b":1,"c":null,"d":1})",
         R"({"b":1,"c":null,})", R"({,"b":1,"c":null})", "{}"});
  Check("{" + properties + "}",
        {"{}", R"({"b":1})", R"({"a":"x"})", R"({"c":null})", R"({"b":1,"c":null})",
         R"({"a":"x","c":null})", R"({"b":1,"a":"x","c":null})"},
        {R"({"a":"x","b":1})", R"({"a":1})", R"({"b":1,"b":1})", R"({"d":1})"});
  Check("{" + properties + R"(, "additionalProperties": {"type": "boolean"}, "required": ["a"]})",
        {R"({"a":"x"})", R"({"b":1,"a":"x","aa":true,"":false})", R"({"a":"x","海":true})"},
        {R"({"a":"x","d":1})", R"({"a":"x","a":true})", R"({"a":"x","b":true})", R"({"d":true})"});
  Check(R"({"type": "object", "additionalProperties": {"type": "integer"}})",
        {"{}", R"({"x":1, "y":2})", R"({"\n":1})"}, {R"({"x":"1"})"});
  Check(R"({"properties": {}, "additionalProperties": false})", {"{}"}, {R"({"a":1})"});
}

TEST(JsonSchema, References) {
  Check(R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties":
           {"value": {"type": "integer"}, "children": {"items": {"$ref": "#/$defs/tree"}}},
           "required": ["value"]}}})",
        {R"({"value":1})", R"({"value":1,"children":[{"value":2,"children":[]}]})"},
        {R"({"children":[]})", R"({"value":1,"children":[{}]})"});
  Check(R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[],[[]]]"}, {"[1]", "1"});
  Check(R"({"properties": {"a/b": {"type": "null"}, "c": {"$ref": "#/properties/a~1b"}}})",
        {R"({"a/b":null,"c":null})"}, {R"({"c":1})"});
  EXPECT_NE(SchemaFault(R"({"$ref": "#/$defs/none"})").find("there is no schema"),
            std::string::npos);
  EXPECT_NE(
      SchemaFault(R"({"$ref": "https://example.org/s"})").find("must be a place in this schema"),
      std::string::npos);
  for (const char* endless :
       {R"({"$ref": "#"})", R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
        R"({"properties": {"a": false}, "required": ["a"]})", "false"}) {
    EXPECT_NE(SchemaFault(endless).find("has no text"), std::string::npos) << endless;
  }
  Check(R"({"properties": {"a": {"$ref": "#"}, "b": false}})", {"{}", R"({"a":{"a":{}}})"},
        {R"({"b":1})"});
  // Long chains of references take no stack.
  json schema = {{"$ref", "#/$defs/0"}, {"$defs", json::object()}};
  for (int i = 0; i < 900; ++i) {
    schema["$defs"][std::to_string(i)] = {{"$ref", "#/$defs/" + std::to_string(i + 1)}};
  }
  schema["$defs"]["900"] = {{"type", "null"}};
  Check(schema.dump(), {"null"}, {"1"});
}

TEST(JsonSchema, Formats) {
  Check(R"({"type": "string", "format": "date"})", {"\"2026-02-28\""},
        {"\"2026-13-01\"", "\"2026-00-01\"", "\"2026-1-01\"", "\"2026-01-32\""});
  Check(R"({"type": "string", "format": "date-time"})",
        {"\"2026-02-28T23:59:59Z\"", "\"2026-02-28T00:00:00.25+08:00\""},
        {"\"2026-02-28\"", "\"2026-02-28T24:00:00Z\"", "\"2026-02-28T23:59:59\""});
  Check(R"({"type": "string", "format": "uuid"})", {"\"01234567-89ab-cdef-0123-456789abcdef\""},
        {"\"01234567\""});
  Check(R"({"type": "string", "format": "email"})", {"\"not one\""}, {"1"});
}

TEST(JsonSchema, UnsupportedKeywordsAreNamed) {
  EXPECT_EQ(SchemaFault(R"({"properties": {"a": {"type": "array", "uniqueItems": true}}})"),
            "the schema, #/properties/a: 'uniqueItems' is not supported here");
  for (const char* schema :
       {R"({"not": {}})", R"({"type": "number", "multipleOf": 1})", R"({"if": {}, "then": {}})",
        R"({"type": "array", "uniqueItems": true})", R"({"type": "object", "minProperties": 1})",
        R"({"anyOf": [{}], "type": "string"})", R"({"type": ["string"], "contentEncoding": "x"})",
        R"({"allOf": [{}, {}]})", R"({"const": 1, "minimum": 2})",
        R"({"type": "string", "items": {}})", R"({"type": "boolean", "minimum": 0})"}) {
    EXPECT_NE(SchemaFault(schema).find("not supported"), std::string::npos) << schema;
  }
  for (const char* schema : {"",
                             "[]",
                             "1",
                             "{\"type\": 1}",
                             R"({"type": "text"})",
                             R"({"enum": []})",
                             R"({"enum": 1})",
                             R"({"required": ["a"]})",
                             R"({"required": "a"})",
                             R"({"properties": []})",
                             R"({"type": "string", "minLength": 3, "maxLength": 2})",
                             R"({"type": "string", "minLength": -1})",
                             R"({"minItems": 1.5})",
                             R"({"anyOf": []})",
                             R"({"prefixItems": [{}, {}], "maxItems": 1})",
                             R"({"type": "string", "format": 1})",
                             R"({"type": "integer", "minimum": "1"})",
                             R"({"additionalProperties": 1})",
                             R"({"type": []})",
                             R"({"type": ["null", "null"]})",
                             R"({"type": "text", "const": 1})",
                             R"({"type": "string", "const": 1})",
                             R"({"$ref": "#name"})",
                             R"({"$ref": "#/%24defs/a"})",
                             R"({"type": "integer", "exclusiveMinimum": true})",
                             R"({"type": "integer", "minimum": 1e300})"}) {
    EXPECT_NE(SchemaFault(schema), "") << schema;
  }
}

// Schemas that clients send are compiled on the server's threads.
TEST(JsonSchema, LargeSchemasAreRefusedSoon) {
  const auto begin = std::chrono::steady_clock::now();
  json many = json::object(), names = json::object(), types = json::array();
  for (int i = 0; i < 1000; ++i) many[std::to_string(i)] = json::object();
  const json deep = {{"properties", {{std::string(400'000, 'x'), {{"properties", many}}}}}};
  EXPECT_NE(SchemaFault(deep.dump()).find("too large"), std::string::npos);
  for (int i = 0; i < 200; ++i) names[std::to_string(i) + std::string(150, 'x')] = true;
  EXPECT_NE(SchemaFault(json{{"properties", names}, {"additionalProperties", true}}.dump())
                .find("at most 4000"),
            std::string::npos);
  for (int i = 0; i < 100'000; ++i) types.push_back("null");
  EXPECT_NE(SchemaFault(json{{"type", types}}.dump()).find("twice"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

// The subset of JSON Schema that the next test uses.
bool Valid(const json& schema, const json& value) {
  if (schema.contains("enum")) {
    for (const json& one : schema["enum"]) {
      if (one == value) return true;
    }
    return false;
  }
  if (schema.contains("anyOf")) {
    for (const json& one : schema["anyOf"]) {
      if (Valid(one, value)) return true;
    }
    return false;
  }
  const std::string type = schema.value("type", "");
  if (type == "integer") {
    return value.is_number_integer() && value >= schema.value("minimum", -1e18) &&
           value <= schema.value("maximum", 1e18);
  }
  if (type == "number") {
    return value.is_number() && value >= schema.value("minimum", -1e300) &&
           value < schema.value("exclusiveMaximum", 1e300);
  }
  if (type == "string") {
    if (!value.is_string()) return false;
    const size_t length = CodePoints(value.get<std::string>()).size();
    return length >= schema.value("minLength", size_t{0}) &&
           length <= schema.value("maxLength", SIZE_MAX);
  }
  if (type == "array") {
    if (!value.is_array() || value.size() < schema.value("minItems", size_t{0})) return false;
    if (value.size() > schema.value("maxItems", SIZE_MAX)) return false;
    for (const json& item : value) {
      if (!Valid(schema["items"], item)) return false;
    }
    return true;
  }
  if (type == "object") {
    if (!value.is_object()) return false;
    for (const json& name : schema["required"]) {
      if (!value.contains(name)) return false;
    }
    for (const auto& [name, item] : value.items()) {
      const bool known = schema["properties"].contains(name);
      if (!known && schema["additionalProperties"] == false) return false;
      if (!Valid(known ? schema["properties"][name] : schema["additionalProperties"], item)) {
        return false;
      }
    }
    return true;
  }
  return true;
}

json RandomSchema(std::mt19937& random, int depth) {
  const auto draw = [&](int count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  switch (draw(depth > 0 ? 7 : 4)) {
    case 0: {
      const int low = draw(2000) - 1000;
      return {{"type", "integer"}, {"minimum", low}, {"maximum", low + draw(500)}};
    }
    case 1:
      return {{"type", "string"}, {"minLength", draw(3)}, {"maxLength", 3 + draw(5)}};
    case 2:
      return {{"enum", {"red", "海", nullptr, draw(100), "a\"b"}}};
    case 3: {
      if (draw(2) == 0) return {{"type", "number"}};
      const int low = draw(2000) - 1000, high = low + 1 + draw(900);
      return {{"type", "number"}, {"minimum", low / 100.0}, {"exclusiveMaximum", high / 100.0}};
    }
    case 4:
      return {{"type", "array"},
              {"items", RandomSchema(random, depth - 1)},
              {"minItems", draw(3)},
              {"maxItems", 2 + draw(3)}};
    case 5:
      return {{"anyOf", {RandomSchema(random, depth - 1), RandomSchema(random, depth - 1)}}};
    default: {
      json schema = {{"type", "object"},
                     {"properties", json::object()},
                     {"required", json::array()},
                     {"additionalProperties", false}};
      for (const char* name : {"b", "a", "ab", "名"}) {
        if (draw(3) == 0) continue;
        schema["properties"][name] = RandomSchema(random, depth - 1);
        if (draw(2) == 0) schema["required"].push_back(name);
      }
      if (draw(2) == 0) schema["additionalProperties"] = RandomSchema(random, 0);
      return schema;
    }
  }
}

// Texts drawn at random from what the matcher allows are valid JSON that the schema accepts.
TEST(JsonSchema, RandomTextsAreValid) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    const json schema = RandomSchema(random, 3);
    const Grammar grammar = Grammar::OfJsonSchema(schema.dump());
    GrammarMatcher matcher(grammar, ByteVocabulary());
    std::string text;
    while (!matcher.finished() && (!matcher.complete() || random() % 2 == 0)) {
      ASSERT_LT(text.size(), 100'000u);
      const std::string allowed = AllowedBytes(matcher);
      ASSERT_FALSE(allowed.empty()) << text;
      char c = allowed[random() % allowed.size()];
      const size_t end = allowed.find_first_of("\"]}");
      if (end != std::string::npos && random() % 3 == 0) c = allowed[end];
      text += c;
      matcher.Add(ByteToken(c));
    }
    const json value = json::parse(text, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << schema << "\n" << text;
    ASSERT_TRUE(Valid(schema, value)) << schema << "\n" << text;
  }
}

}  // namespace
}  // namespace linnet
