#include "linnet/tasks/endpoint.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "linnet/base/suggestion.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/sampling.h"

namespace linnet::server {

using json = nlohmann::ordered_json;
using nlohmann::ordered_json;

Fields::Fields(const json& object, const std::vector<std::string>& names, const std::string& what)
    : object_(object) {
  if (!object.is_object()) throw InputError(what, " is not a JSON object");
  for (const auto& [name, value] : object.items()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const std::string suggestion = Suggestion(name, names);
    if (!suggestion.empty()) throw InputError("unknown field ", Quote(name), suggestion);
    std::string all;
    for (const std::string& known : names) all += (all.empty() ? "" : ", ") + Quote(known);
    throw InputError("unknown field ", Quote(name), "; the fields are ", all);
  }
}

bool Fields::Has(const std::string& name) const {
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

const json& Fields::Value(const std::string& name) const {
  if (!Has(name)) throw InputError("'", name, "' is missing");
  return object_.at(name);
}

std::string Fields::Text(const std::string& name, const std::string& otherwise) const {
  if (!Has(name)) return otherwise;
  const json& value = object_.at(name);
  if (!value.is_string()) throw InputError("'", name, "' is not a string");
  return value.get<std::string>();
}

bool Fields::Flag(const std::string& name, bool otherwise) const {
  if (!Has(name)) return otherwise;
  const json& value = object_.at(name);
  if (!value.is_boolean()) throw InputError("'", name, "' is neither true nor false");
  return value.get<bool>();
}

double Fields::Number(const std::string& name, double otherwise, double low, double high) const {
  if (!Has(name)) return otherwise;
  const json& value = object_.at(name);
  if (!value.is_number()) throw InputError("'", name, "' is not a number");
  const double number = value.get<double>();
  if (!(number >= low && number <= high)) {
    throw InputError("'", name, "' is ", number, "; it must lie between ", low, " and ", high);
  }
  return number;
}

int64_t Fields::Integer(const std::string& name, int64_t otherwise, int64_t low,
                        int64_t high) const {
  if (!Has(name)) return otherwise;
  const json& value = object_.at(name);
  // Also accepts whole numbers that are written as floats, such as 1e3.
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(std::floor(number) == number)) throw InputError("'", name, "' is not a whole number");
  if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high))) {
    throw InputError("'", name, "' is ", number, "; it must lie between ", low, " and ", high);
  }
  return value.is_number_integer() ? value.get<int64_t>() : static_cast<int64_t>(number);
}

std::string Endpoint::Item(const std::string& name) {
  throw Refusal{404, StrCat("there is no ", Quote(name))};
}

std::string Endpoint::Remove(const std::string& name) { return Item(name); }

const ServedModel& Choose(const std::vector<ServedModel>& models, const Fields& fields) {
  const std::string name = fields.Text("model", "");
  std::vector<std::string> names;
  for (const ServedModel& model : models) {
    if (name.empty() || model.name == name) return model;
    names.push_back(model.name);
  }
  const std::string suggestion = Suggestion(name, names);
  throw Refusal{404, StrCat("no model ", Quote(name), " at this path",
                            suggestion.empty() ? "; GET /v1/models lists the models" : suggestion)};
}

void CheckKeeper(const ServedModel& served) {
  if (served.keeper != nullptr) return;
  throw Refusal{400, "this server keeps no states; start it with --state-folder DIR"};
}

std::string RandomName(std::string_view prefix) {
  std::random_device random;
  std::string name(prefix);
  for (int i = 0; i < 4; ++i) {
    char digits[16];
    std::snprintf(digits, sizeof(digits), "%08x", static_cast<unsigned>(random()));
    name += digits;
  }
  return name;
}

std::string Dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string Event(std::string_view name, const nlohmann::ordered_json& data) {
  return StrCat(name.empty() ? "" : "event: ", name, name.empty() ? "" : "\n", "data: ", Dump(data),
                "\n\n");
}

ChoiceOptions ChoiceOf(const Fields& fields, const ChoiceOptions& otherwise, uint64_t& seed) {
  ChoiceOptions choice;
  choice.temperature =
      static_cast<float>(fields.Number("temperature", otherwise.temperature, 0, 100));
  choice.top_k = static_cast<size_t>(
      fields.Integer("top_k", static_cast<int64_t>(otherwise.top_k), 0, int64_t{1} << 30));
  choice.top_p = static_cast<float>(fields.Number("top_p", otherwise.top_p, 0, 1));
  // Validate() refuses top_p 0, but a request may have it: it selects the most likely token.
  if (choice.top_p == 0) choice.top_k = 1, choice.top_p = 1;
  // Limits seeds because many JSON parsers read numbers as doubles, which are exact up to 2^53.
  constexpr int64_t kMost = int64_t{1} << 53;
  seed = fields.Has("seed") ? static_cast<uint64_t>(fields.Integer("seed", 0, 0, kMost))
                            : std::random_device()();
  return choice;
}

}  // namespace linnet::server
