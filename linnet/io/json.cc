#include "linnet/io/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace linnet {

using nlohmann::json;

json ParseJson(std::string_view text, int max_depth, std::string& fault) {
  fault.clear();
  std::vector<std::set<std::string>> keys;
  // After a fault nothing more is kept, so that no tower of nested arrays is built.
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
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
        if (const auto& key = parsed.get_ref<const std::string&>();
            !keys.back().insert(key).second) {
          fault = "has " + Quote(key) + " twice";
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

std::string Quote(std::string_view name) {
  constexpr size_t kLongest = 80;
  std::string quoted = "'";
  for (char c : name.substr(0, kLongest)) {
    quoted += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return quoted + (name.size() > kLongest ? "...'" : "'");
}

}  // namespace linnet
