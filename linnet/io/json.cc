#include "linnet/io/json.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace linnet {

namespace {

template <typename json>
json Parse(std::string_view text, int max_depth, size_t max_keys, std::string& fault) {
  fault.clear();
  std::vector<std::set<std::string>> keys;  // the keys read so far, for each open object
  // After a fault nothing more is stored, so a malicious text cannot build a deeply nested value.
  const auto check = [&](int depth, typename json::parse_event_t event, json& parsed) {
    if (!fault.empty()) return false;
    if (depth > max_depth) {
      fault = "is nested too deeply";
      return false;
    }
    switch (event) {
      case json::parse_event_t::object_start:
        keys.emplace_back();
        break;
      case json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case json::parse_event_t::key:
        if (const auto& key = parsed.template get_ref<const std::string&>();
            !keys.back().insert(key).second) {
          fault = "has " + Quote(key) + " twice";
          return false;
        }
        if (keys.back().size() > max_keys) {
          fault = "has an object with more than " + std::to_string(max_keys) + " keys";
          return false;
        }
        break;
      default:
        break;
    }
    return true;
  };
  json value = json::parse(text, check, /*allow_exceptions=*/false);
  if (fault.empty() && value.is_discarded()) fault = "is not valid JSON";
  return fault.empty() ? value : json();
}

// Whether text[at] begins a UTF-8 control character from U+0080 to U+009F.
bool IsC1(std::string_view text, size_t at) {
  return text[at] == '\xc2' && at + 1 < text.size() && (text[at + 1] & 0xe0) == 0x80;
}

}  // namespace

nlohmann::json ParseJson(std::string_view text, int max_depth, std::string& fault) {
  return Parse<nlohmann::json>(text, max_depth, SIZE_MAX, fault);
}

nlohmann::ordered_json ParseOrderedJson(std::string_view text, int max_depth, std::string& fault) {
  constexpr size_t kMostKeys = 1000;
  return Parse<nlohmann::ordered_json>(text, max_depth, kMostKeys, fault);
}

std::string Brief(std::string_view text) {
  constexpr size_t kLongest = 80;
  size_t length = std::min(text.size(), kLongest);
  // Does not cut a character of UTF-8 apart.
  const auto continues = [&](size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80;
  };
  for (int i = 0; i < 3 && length < text.size() && continues(length); ++i) --length;
  std::string brief;
  for (size_t i = 0; i < length; ++i) {
    const char c = text[i];
    const bool c1 = IsC1(text, i);
    brief += c1 || static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    i += c1;
  }
  return brief + (text.size() > kLongest ? "..." : "");
}

std::string Quote(std::string_view name) { return "'" + Brief(name) + "'"; }

std::string QuoteAll(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + Quote(names[i]);
  }
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

std::string EscapeControls(std::string_view json) {
  std::string escaped;
  for (size_t i = 0; i < json.size(); ++i) {
    const bool c1 = IsC1(json, i);
    if (!c1 && json[i] != 0x7f) {
      escaped += json[i];
      continue;
    }
    constexpr const char* kHex = "0123456789abcdef";
    const auto code = static_cast<unsigned char>(json[c1 ? ++i : i]);
    escaped += "\\u00";
    escaped += {kHex[code >> 4], kHex[code & 15]};
  }
  return escaped;
}

}  // namespace linnet
