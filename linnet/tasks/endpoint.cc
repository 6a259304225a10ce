#include "linnet/tasks/endpoint.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/sampling.h"

namespace linnet::server {

using nlohmann::json;

Fields::Fields(const json& object, const std::string& what) : object_(object) {
  if (!object.is_object()) throw InputError(what, " is not a JSON object");
}

bool Fields::Has(const std::string& name) {
  if (std::find(known_.begin(), known_.end(), name) == known_.end()) known_.push_back(name);
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

const json& Fields::Value(const std::string& name) {
  if (!Has(name)) throw InputError("'", name, "' is missing");
  return object_.at(name);
}

std::string Fields::Text(const std::string& name, const std::string& otherwise) {
  if (!Has(name)) return otherwise;
  const json& value = object_.at(name);
  if (!value.is_string()) throw InputError("'", name, "' is not a string");
  return value.get<std::string>();
}

bool Fields::Flag(const std::string& name, bool otherwise) {
  if (!Has(name)) return otherwise;
  const json& value = object_.at(name);
  if (!value.is_boolean()) throw InputError("'", name, "' is neither true nor false");
  return value.get<bool>();
}

double Fields::Number(const std::string& name, double otherwise, double low, double high) {
  if (!Has(name)) return otherwise;
  const json& value = object_.at(name);
  if (!value.is_number()) throw InputError("'", name, "' is not a number");
  const double number = value.get<double>();
  if (!(number >= low && number <= high)) {
    throw InputError("'", name, "' is ", number, "; it must lie between ", low, " and ", high);
  }
  return number;
}

int64_t Fields::Integer(const std::string& name, int64_t otherwise, int64_t low, int64_t high) {
  if (!Has(name)) return otherwise;
  const json& value = object_.at(name);
  // Accepts whole numbers in other forms (1e3).
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(std::floor(number) == number)) throw InputError("'", name, "' is not a whole number");
  if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high))) {
    throw InputError("'", name, "' is ", number, "; it must lie between ", low, " and ", high);
  }
  return value.is_number_integer() ? value.get<int64_t>() : static_cast<int64_t>(number);
}

void Fields::RefuseOthers() const {
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
      throw InputError("unknown field ", Quote(name), "; the fields are ", QuoteAll(known_));
    }
  }
}

const ServedModel& Choose(const std::vector<ServedModel>& models, Fields& fields) {
  const std::string name = fields.Text("model", "");
  for (const ServedModel& model : models) {
    if (name.empty() || model.name == name) return model;
  }
  throw Refusal{404,
                StrCat("no model ", Quote(name), " at this path; GET /v1/models lists the models")};
}

std::string Dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string Event(std::string_view name, const nlohmann::ordered_json& data) {
  return StrCat(name.empty() ? "" : "event: ", name, name.empty() ? "" : "\n", "data: ", Dump(data),
                "\n\n");
}

ChoiceOptions ChoiceOf(Fields& fields, const ChoiceOptions& otherwise, uint64_t& seed) {
  ChoiceOptions choice;
  choice.temperature =
      static_cast<float>(fields.Number("temperature", otherwise.temperature, 0, 100));
  choice.top_k = static_cast<size_t>(
      fields.Integer("top_k", static_cast<int64_t>(otherwise.top_k), 0, int64_t{1} << 30));
  choice.top_p = static_cast<float>(fields.Number("top_p", otherwise.top_p, 0, 1));
  if (choice.top_p == 0) choice.top_k = 1, choice.top_p = 1;
  // Many JSON parsers use doubles, which represent all whole numbers up to 2^53.
  constexpr int64_t kMost = int64_t{1} << 53;
  seed = fields.Has("seed") ? static_cast<uint64_t>(fields.Integer("seed", 0, 0, kMost))
                            : std::random_device()();
  return choice;
}

}  // namespace linnet::server
