#include "linnet/tasks/text/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/tasks/text/digits.h"
#include "linnet/tasks/text/pattern.h"

namespace linnet::grammar {
namespace {

using json = nlohmann::ordered_json;

constexpr int kDepth = 64;              // maximum nesting of a schema's JSON
constexpr int64_t kMostItems = 10'000;  // for minItems, maxItems, minLength and maxLength
constexpr size_t kMostPaths = 4 << 20;  // bytes of all places of schemas
constexpr size_t kMostNames = 4000;     // bytes of all names beside additionalProperties
constexpr size_t kLongestName = 200;    // of a property, beside additionalProperties

// Keywords that describe a value and do not restrict it.
const std::set<std::string> kAnnotations = {
    "title",    "description", "default",   "examples",   "$schema", "$id",        "$anchor",
    "$comment", "readOnly",    "writeOnly", "deprecated", "$defs",   "definitions"};

// Makes rules of schemas. `path` is the place of a schema, such as "#/properties/name".
class Schemas {
 public:
  explicit Schemas(const json& root) : root_(root) {
    DefineValues();
    rules_.root = RuleOf("#");
    while (!pending_.empty()) {
      const auto [rule, path] = std::move(pending_.back());
      pending_.pop_back();
      rules_.Define(rule, Accepted(At(path), path));
    }
  }
  GrammarRules Take() { return std::move(rules_); }

 private:
  [[noreturn]] static void Fail(const std::string& path, const std::string& what) {
    throw InputError("the schema, ", Brief(path), ": ", what);
  }

  // ---- Values of any content

  void DefineValues() {
    const Expression digit = Set({{'0', '9'}});
    const Expression hex = Set({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
    const Expression low = Sequence(Set({{'d', 'd'}, {'D', 'D'}}), Set({{'0', '7'}}), hex, hex);
    const Expression other =
        Sequence(Set({{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}}), hex, hex, hex);
    // The halves of a surrogate pair.
    const Expression high_half = Sequence(Set({{'d', 'd'}, {'D', 'D'}}),
                                          Set({{'8', '9'}, {'a', 'b'}, {'A', 'B'}}), hex, hex);
    const Expression low_half =
        Sequence(Set({{'d', 'd'}, {'D', 'D'}}), Set({{'c', 'f'}, {'C', 'F'}}), hex, hex);
    plain_ = rules_.Add(NotIn({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0x7f, 0x9f}}));
    const Expression simple = Set({{'"', '"'},
                                   {'\\', '\\'},
                                   {'/', '/'},
                                   {'b', 'b'},
                                   {'f', 'f'},
                                   {'n', 'n'},
                                   {'r', 'r'},
                                   {'t', 't'}});
    const Expression unicode =
        Sequence(Text("u"), Choice(low, other, Sequence(high_half, Text("\\u"), low_half)));
    character_ = rules_.Add(Choice(Rule(plain_), Sequence(Text("\\"), Choice(simple, unicode))));
    string_ = rules_.Add(Quoted(Repeat(Rule(character_), 0)));
    const Expression whole =
        Choice(Text("0"), Sequence(Set({{'1', '9'}}), Repeat(digit, 0, kMostDigits - 1)));
    integer_ = rules_.Add(Sequence(Optional(Text("-")), whole));
    number_ = rules_.Add(
        Sequence(Rule(integer_), Optional(Sequence(Text("."), Repeat(digit, 1, kMostDigits))),
                 Optional(Sequence(Set({{'e', 'e'}, {'E', 'E'}}),
                                   Optional(Set({{'+', '+'}, {'-', '-'}})), Repeat(digit, 1, 2)))));
    any_ = rules_.Declare("a JSON value");
    any_object_ = rules_.Declare("a JSON object");
    any_array_ = rules_.Add(List({}, Rule(any_), 0, Expression::kUnlimited));
    const Expression pair = Sequence(Rule(string_), Colon(), Rule(any_));
    rules_.Define(any_object_,
                  InBraces(Optional(Sequence(pair, Repeat(Sequence(Comma(), pair), 0)))));
    rules_.Define(any_, Choice(Rule(string_), Rule(number_), Rule(any_object_), Rule(any_array_),
                               Text("true"), Text("false"), Text("null")));
  }
  static Expression Quoted(Expression inner) {
    return Sequence(Text("\""), std::move(inner), Text("\""));
  }
  // No other blanks are allowed, because models tend to write too many of them.
  static Expression Comma() { return Sequence(Text(","), Optional(Text(" "))); }
  static Expression Colon() { return Sequence(Text(":"), Optional(Text(" "))); }
  static Expression InBraces(Expression inner) {
    return Sequence(Text("{"), std::move(inner), Text("}"));
  }
  // A list of the items `first`, then of `least` to `most` items `rest`.
  static Expression List(std::vector<Expression> first, Expression rest, size_t least,
                         size_t most) {
    std::vector<Expression> parts = {Text("[")};
    for (size_t i = 0; i < first.size(); ++i) {
      if (i > 0) parts.push_back(Comma());
      parts.push_back(std::move(first[i]));
    }
    if (!first.empty()) {
      parts.push_back(Repeat(Sequence(Comma(), std::move(rest)), least, most));
    } else if (most > 0) {
      Expression items = rest;
      const size_t more = most == Expression::kUnlimited ? most : most - 1;
      items = Sequence(std::move(items), Repeat(Sequence(Comma(), std::move(rest)),
                                                least - std::min<size_t>(least, 1), more));
      parts.push_back(least == 0 ? Optional(std::move(items)) : std::move(items));
    }
    parts.push_back(Text("]"));
    return SequenceOf(std::move(parts));
  }

  // ---- Schemas

  // The rule of the schema at `path`. The constructor defines it later.
  size_t RuleOf(const std::string& path) {
    const auto [found, added] = made_.try_emplace(path, 0);
    if (added) {
      if ((path_bytes_ += path.size()) > kMostPaths) {
        throw InputError(
            "the schema is too large: the names on the way to its parts have more than ",
            kMostPaths, " bytes");
      }
      found->second = rules_.Declare(path);
      pending_.emplace_back(found->second, path);
    }
    return found->second;
  }
  // The schema that a reference such as "#/$defs/name" names.
  const json& At(const std::string& path) const {
    const json* at = nullptr;
    try {
      const json::json_pointer pointer(path.substr(1));
      if (root_.contains(pointer)) at = &root_.at(pointer);
    } catch (const json::exception&) {
    }
    if (at == nullptr) Fail(path, "there is no schema at this place");
    return *at;
  }
  Expression Part(const std::string& path, const std::string& key) {
    return Rule(RuleOf(path + "/" + Escaped(key)));
  }
  // A key in a JSON pointer.
  static std::string Escaped(const std::string& key) {
    std::string escaped;
    for (const char c : key) {
      escaped += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    }
    return escaped;
  }

  Expression Accepted(const json& schema, const std::string& path) {
    if (schema.is_boolean()) return schema.get<bool>() ? Rule(any_) : ChoiceOf({});
    if (!schema.is_object()) Fail(path, "expected an object, or true or false");
    if (schema.contains("$ref")) return Reference(schema, path);
    if (schema.contains("const")) {
      Allow(schema, path, {"const", "type"});
      return OneOf(json::array({schema["const"]}), schema, path);
    }
    if (schema.contains("enum")) return Enumeration(schema, path);
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(key)) continue;
      Allow(schema, path, {key});
      return Combination(schema[key], path + "/" + key, key);
    }
    const std::set<std::string> types = TypesOf(schema, path);
    std::set<std::string> keys = {"type"};
    for (const std::string& type : types) keys.insert(KeysOf(type).begin(), KeysOf(type).end());
    Allow(schema, path, keys);
    std::vector<Expression> parts;
    parts.reserve(types.size());
    for (const std::string& type : types) parts.push_back(Typed(schema, path, type));
    return parts.size() == 1 ? std::move(parts[0]) : ChoiceOf(std::move(parts));
  }
  // The types that a schema names or implies; {""} if no keyword restricts the value.
  static std::set<std::string> TypesOf(const json& schema, const std::string& path) {
    const auto type = schema.find("type");
    if (type == schema.end()) return {ImpliedType(schema, path)};
    if (!type->is_array()) return {TypeOf(*type, path)};
    std::set<std::string> types;
    for (const json& one : *type) {
      if (!types.insert(TypeOf(one, path)).second) Fail(path, "'type' has a type twice");
    }
    if (types.empty()) Fail(path, "'type' is an empty list");
    return types;
  }
  // One of these values, of those that have a type of the schema.
  static Expression OneOf(const json& values, const json& schema, const std::string& path) {
    std::set<std::string> types;
    if (schema.contains("type")) types = TypesOf(schema, path);
    std::vector<Expression> parts;
    for (const json& value : values) {
      if (types.empty() || HasType(value, types)) parts.push_back(Text(value.dump()));
    }
    if (parts.empty()) Fail(path, "no value has the type that 'type' requires");
    return ChoiceOf(std::move(parts));
  }
  static bool HasType(const json& value, const std::set<std::string>& types) {
    const bool whole =
        value.is_number_integer() ||
        (value.is_number() && std::floor(value.get<double>()) == value.get<double>());
    return (value.is_object() && types.contains("object")) ||
           (value.is_array() && types.contains("array")) ||
           (value.is_string() && types.contains("string")) ||
           (value.is_number() && types.contains("number")) ||
           (whole && types.contains("integer")) ||
           (value.is_boolean() && types.contains("boolean")) ||
           (value.is_null() && types.contains("null"));
  }
  Expression Reference(const json& schema, const std::string& path) {
    Allow(schema, path, {"$ref"});
    const json& target = schema["$ref"];
    const std::string place = target.is_string() ? target.get<std::string>() : "";
    if ((place != "#" && !place.starts_with("#/")) || place.find('%') != place.npos) {
      Fail(path,
           "'$ref' must be a place in this schema, such as \"#/$defs/name\", without anchors and "
           "percent-encoding");
    }
    return Rule(RuleOf(target.get<std::string>()));
  }
  Expression Enumeration(const json& schema, const std::string& path) {
    Allow(schema, path, {"enum", "type"});
    const json& values = schema["enum"];
    if (!values.is_array() || values.empty()) Fail(path, "'enum' must be a list of values");
    return OneOf(values, schema, path);
  }
  Expression Combination(const json& list, const std::string& path, const std::string& key) {
    if (!list.is_array() || list.empty()) Fail(path, "expected a list of schemas");
    if (key == "allOf" && list.size() > 1)
      Fail(path, "'allOf' of several schemas is not supported");
    std::vector<Expression> parts;
    for (size_t i = 0; i < list.size(); ++i) parts.push_back(Part(path, std::to_string(i)));
    return ChoiceOf(std::move(parts));
  }

  // ---- Types

  static const std::set<std::string>& KeysOf(const std::string& type) {
    static const std::map<std::string, std::set<std::string>> keys = {
        {"object", {"properties", "required", "additionalProperties"}},
        {"array", {"items", "prefixItems", "minItems", "maxItems"}},
        {"string", {"minLength", "maxLength", "format", "pattern"}},
        {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
        {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
        {"boolean", {}},
        {"null", {}}};
    static const std::set<std::string> none;
    const auto found = keys.find(type);
    return found == keys.end() ? none : found->second;
  }
  static std::string TypeOf(const json& type, const std::string& path) {
    static const std::set<std::string> names = {"object", "array",   "string", "integer",
                                                "number", "boolean", "null"};
    if (!type.is_string() || !names.contains(type.get<std::string>())) {
      Fail(path, "'type' must be object, array, string, integer, number, boolean or null");
    }
    return type.get<std::string>();
  }
  // The type of a schema without 'type'; "" if no keyword restricts the value.
  static std::string ImpliedType(const json& schema, const std::string& path) {
    for (const auto& [key, value] : schema.items()) {
      for (const char* type : {"object", "array", "string"}) {
        if (KeysOf(type).contains(key)) return type;
      }
      if (!kAnnotations.contains(key)) Unsupported(path, key);
    }
    return "";
  }
  [[noreturn]] static void Unsupported(const std::string& path, const std::string& key) {
    Fail(path, Quote(key) + " is not supported here");
  }
  // Throws InputError if the schema has a keyword that is neither in `keys` nor an annotation.
  static void Allow(const json& schema, const std::string& path,
                    const std::set<std::string>& keys) {
    for (const auto& [key, value] : schema.items()) {
      if (!keys.contains(key) && !kAnnotations.contains(key)) Unsupported(path, key);
    }
  }

  // A value of one type; keywords of other types do not matter.
  Expression Typed(const json& schema, const std::string& path, const std::string& type) {
    if (type == "object") return Object(schema, path);
    if (type == "array") return Array(schema, path);
    if (type == "string") return String(schema, path);
    if (type == "integer") return Integer(schema, path);
    if (type == "number") return Number(schema, path);
    if (type == "boolean") return Choice(Text("true"), Text("false"));
    if (type == "null") return Text("null");
    return Rule(any_);
  }
  // A keyword with a count; `otherwise` if it is missing.
  static size_t Count(const json& schema, const std::string& path, const char* key,
                      size_t otherwise) {
    if (!schema.contains(key)) return otherwise;
    const json& value = schema[key];
    if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
        value.get<int64_t>() > kMostItems) {
      Fail(path, StrCat("'", key, "' must be a whole number from 0 to ", kMostItems));
    }
    return value.get<size_t>();
  }

  Expression String(const json& schema, const std::string& path) {
    const size_t least = Count(schema, path, "minLength", 0);
    const size_t most = Count(schema, path, "maxLength", Expression::kUnlimited);
    const bool limited = schema.contains("minLength") || schema.contains("maxLength");
    if (most < least) Fail(path, "'maxLength' is smaller than 'minLength'");
    if (schema.contains("pattern")) {
      const json& pattern = schema["pattern"];
      if (!pattern.is_string()) Fail(path, "'pattern' must be a string");
      if (limited || schema.contains("format")) {
        Fail(path, "a length or a 'format' beside 'pattern' is not supported");
      }
      return Quoted(StringsMatching(pattern.get<std::string>(), Rule(character_),
                                    StrCat("the schema, ", Brief(path), ": ")));
    }
    if (schema.contains("format")) {
      const json& name = schema["format"];
      if (!name.is_string()) Fail(path, "'format' must be a string");
      if (auto format = Format(name.get<std::string>())) {
        if (limited) Fail(path, "a length of a 'format' is not supported");
        return Quoted(std::move(*format));
      }
    }
    return Quoted(Repeat(Rule(character_), least, most));
  }
  // The formats that are enforced; others are annotations.
  static std::optional<Expression> Format(const std::string& name) {
    const auto digits = [](size_t count) { return Repeat(Set({{'0', '9'}}), count, count); };
    const auto upto = [](int64_t low, int64_t high) { return DigitsBetween(low, high, 2); };
    const Expression date = Sequence(digits(4), Text("-"), upto(1, 12), Text("-"), upto(1, 31));
    const Expression time = Sequence(
        upto(0, 23), Text(":"), upto(0, 59), Text(":"), upto(0, 59),
        Optional(Sequence(Text("."), Repeat(Set({{'0', '9'}}), 1, 9))),
        Choice(Text("Z"),
               Sequence(Set({{'+', '+'}, {'-', '-'}}), upto(0, 23), Text(":"), upto(0, 59))));
    if (name == "date") return date;
    if (name == "time") return time;
    if (name == "date-time") return Sequence(date, Text("T"), time);
    if (name == "uuid") {
      const auto hex = [](size_t count) {
        return Repeat(Set({{'0', '9'}, {'a', 'f'}}), count, count);
      };
      return Sequence(hex(8), Text("-"), hex(4), Text("-"), hex(4), Text("-"), hex(4), Text("-"),
                      hex(12));
    }
    return {};
  }
  Expression Integer(const json& schema, const std::string& path) {
    int64_t low = -kMostInteger, high = kMostInteger;
    const auto limit = [&](const char* key, int64_t step, auto narrow) {
      if (!schema.contains(key)) return;
      const json& value = schema[key];
      const double number = value.is_number() ? value.get<double>() : NAN;
      if (std::floor(number) != number) {
        Fail(path, StrCat("'", key, "' must be a whole number"));
      }
      // Wider limits than those of all integers have no effect.
      constexpr auto kWide = static_cast<double>(kMostInteger + 1);
      narrow(static_cast<int64_t>(std::clamp(number, -kWide, kWide)) + step);
    };
    const auto from = [&](int64_t value) { low = std::max(low, value); };
    const auto to = [&](int64_t value) { high = std::min(high, value); };
    limit("minimum", 0, from), limit("exclusiveMinimum", 1, from);
    limit("maximum", 0, to), limit("exclusiveMaximum", -1, to);
    if (low > high) Fail(path, "no integer of at most 15 digits lies between these limits");
    return IntegersBetween(low, high);
  }
  Expression Number(const json& schema, const std::string& path) {
    NumberLimits limits;
    const auto value = [&](const char* key, double otherwise) {
      if (!schema.contains(key)) return otherwise;
      if (!schema[key].is_number()) Fail(path, StrCat("'", key, "' must be a number"));
      return schema[key].get<double>();
    };
    limits.low = value("minimum", -INFINITY);
    limits.high = value("maximum", INFINITY);
    if (const double low = value("exclusiveMinimum", -INFINITY); low >= limits.low) {
      limits.low = low, limits.above = true;
    }
    if (const double high = value("exclusiveMaximum", INFINITY); high <= limits.high) {
      limits.high = high, limits.below = true;
    }
    if (std::isinf(limits.low) && std::isinf(limits.high)) return Rule(number_);
    try {
      return NumbersBetween(limits);
    } catch (const InputError& error) {
      Fail(path, error.what());
    }
  }
  Expression Array(const json& schema, const std::string& path) {
    std::vector<Expression> first;
    if (schema.contains("prefixItems")) {
      const json& list = schema["prefixItems"];
      if (!list.is_array()) Fail(path, "'prefixItems' must be a list of schemas");
      for (size_t i = 0; i < list.size(); ++i) {
        first.push_back(Part(path + "/prefixItems", std::to_string(i)));
      }
    }
    const size_t given = first.size();
    size_t least = Count(schema, path, "minItems", given);
    size_t most = Count(schema, path, "maxItems", Expression::kUnlimited);
    if (schema.contains("items") && schema["items"] == json(false)) most = std::min(most, given);
    if (least < given || most < given) {
      Fail(path, "fewer items than in 'prefixItems' are not supported");
    }
    if (most < least) Fail(path, "'maxItems' is smaller than 'minItems'");
    const bool any = !schema.contains("items") || schema["items"].is_boolean();
    Expression rest = any ? Rule(any_) : Part(path, "items");
    least -= given;
    if (most != Expression::kUnlimited) most -= given;
    return List(std::move(first), std::move(rest), least, most);
  }

  // ---- Objects

  struct Property {
    Expression pair;  // key, colon and value
    bool required;
  };

  Expression Object(const json& schema, const std::string& path) {
    std::vector<Property> properties;
    std::set<std::string> names, required;
    if (schema.contains("required")) {
      if (!schema["required"].is_array()) Fail(path, "'required' must be a list of names");
      for (const json& name : schema["required"]) {
        if (!name.is_string()) Fail(path, "'required' must be a list of names");
        required.insert(name.get<std::string>());
      }
    }
    if (schema.contains("properties")) {
      if (!schema["properties"].is_object()) Fail(path, "'properties' must be an object");
      for (const auto& [name, value] : schema["properties"].items()) {
        names.insert(name);
        properties.push_back(
            {Sequence(Text(json(name).dump()), Colon(), Part(path + "/properties", name)),
             required.contains(name)});
      }
    }
    for (const std::string& name : required) {
      if (!names.contains(name)) {
        Fail(path, "the required property " + Quote(name) + " has no schema in 'properties'");
      }
    }
    const auto more = schema.find("additionalProperties");
    if (more != schema.end() && !more->is_boolean() && !more->is_object()) {
      Fail(path, "'additionalProperties' must be a schema, or true or false");
    }
    // Without the keyword, other properties are allowed only if none is listed.
    const bool others = more == schema.end() ? properties.empty() : *more != json(false);
    if (!others) return InBraces(Rule(Tail(properties, {})));
    Expression value = more == schema.end() || more->is_boolean()
                           ? Rule(any_)
                           : Part(path, "additionalProperties");
    Expression key = properties.empty() ? Rule(string_) : Quoted(KeyExcept(names));
    return InBraces(Rule(Tail(properties, Sequence(std::move(key), Colon(), std::move(value)))));
  }
  // A rule of all properties, in their order, and of any number of `other` pairs after them.
  size_t Tail(const std::vector<Property>& properties, std::optional<Expression> other) {
    // The properties from index i on: `first` if none is before them, else `later`.
    Expression first = Text(""), later = Text("");
    if (other) {
      const size_t pair = rules_.Add(std::move(*other));
      later = Repeat(Sequence(Comma(), Rule(pair)), 0);
      first = Optional(Sequence(Rule(pair), later));
    }
    for (size_t i = properties.size(); i-- > 0;) {
      const Property& property = properties[i];
      const size_t after = rules_.Add(std::move(later));
      const size_t pair = rules_.Add(property.pair);
      Expression begun = Sequence(Comma(), Rule(pair), Rule(after));
      Expression begins = Sequence(Rule(pair), Rule(after));
      if (!property.required) {
        begun = Choice(std::move(begun), Rule(after));
        begins = Choice(std::move(begins), std::move(first));
      }
      later = std::move(begun);
      first = std::move(begins);
    }
    return rules_.Add(std::move(first));
  }
  // The characters of a key that is not in `names`. Such keys have no escape sequences.
  Expression KeyExcept(const std::set<std::string>& names) {
    std::map<char32_t, std::set<std::string>> after;  // by the first character
    bool whole = false;                               // "" is in `names`
    for (const std::string& name : names) {
      if (name.empty()) {
        whole = true;
      } else if (name.size() > kLongestName) {
        throw InputError("the schema has a property of ", name.size(),
                         " bytes beside 'additionalProperties'; at most ", kLongestName,
                         " are supported");
      } else {
        const CodePoint c = *NextCodePoint(name, 0);
        after[c.value].insert(name.substr(c.bytes));
      }
    }
    size_t bytes = 0;
    for (const std::string& name : names) bytes += name.size();
    if (bytes > kMostNames) {
      throw InputError("the schema has names of ", bytes,
                       " bytes beside 'additionalProperties'; at most ", kMostNames,
                       " are supported");
    }
    std::vector<CodeRange> excluded = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0x7f, 0x9f}};
    std::vector<Expression> parts;
    for (const auto& [c, rests] : after) {
      excluded.push_back({c, c});
      if (c <= 0x1f || c == '"' || c == '\\' || (c >= 0x7f && c <= 0x9f)) continue;
      std::string text;
      AppendUtf8(c, text);
      parts.push_back(Sequence(Text(std::move(text)), KeyExcept(rests)));
    }
    parts.push_back(Sequence(NotIn(std::move(excluded)), Repeat(Rule(plain_), 0)));
    if (!whole) parts.push_back(Text(""));
    return ChoiceOf(std::move(parts));
  }

  const json& root_;
  GrammarRules rules_;
  std::map<std::string, size_t> made_;                   // rules of schemas, by their places
  std::vector<std::pair<size_t, std::string>> pending_;  // those to be defined, and their places
  size_t path_bytes_ = 0;                                // of made_
  size_t plain_ = 0, character_ = 0, string_ = 0, integer_ = 0, number_ = 0;
  size_t any_ = 0, any_object_ = 0, any_array_ = 0;
};

}  // namespace

GrammarRules RulesOfSchema(const std::string& schema) {
  std::string fault;
  const json root = ParseOrderedJson(schema, kDepth, fault);
  if (!fault.empty()) throw InputError("the schema ", fault);
  return Schemas(root).Take();
}

}  // namespace linnet::grammar
