// linnet reproduce polynomial: from which length on linear attention with the features of a
// polynomial is faster than softmax attention (section 3.2.1 of the paper), measured by `linnet
// bench attention`.
#include <cmath>

#include "experiments/experiment.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

// The length at which the times of `method` fall below those of `other`, interpolated between the
// measured lengths on logarithmic axes. Null if they do not, or are below at the shortest length.
json Crossing(const json& method, const json& other) {
  json found;
  double last_n = 0, last = 0;  // log of the length before, and of the ratio of the times there
  for (const json& point : method.at("runs")) {
    const json time = ValueOf(other.at("runs"), "N", point.at("N"));
    if (time.is_null()) continue;
    const double n = std::log(point.at("N").get<double>());
    const double ratio = std::log(point.at("value").get<double>() / time.get<double>());
    if (last > 0 && ratio <= 0) {
      found = std::round(std::exp(last_n + (n - last_n) * last / (last - ratio)));
    }
    last_n = n, last = ratio;
  }
  return found;
}

}  // namespace

void DerivePolynomial(const json& about, json& values) {
  values["sets"] = json::array();
  for (const json& dim : about.at("dims")) {
    json times = json::array();
    for (const json& record : values.at("records")) {
      if (record.at("dim") != dim || !record.at("name").get<std::string>().ends_with("/time")) {
        continue;
      }
      times.push_back(record);
    }
    const json methods = MethodsRun(about.at("kinds"), times);
    const json polynomial = FindRecord(methods, "name", "polynomial2"),
               softmax = FindRecord(methods, "name", "softmax");
    if (polynomial.is_null() || softmax.is_null()) {
      throw InputError("lacks the times of polynomial2 or softmax for D = ", dim.get<int>());
    }
    const int d = dim;
    values["sets"].push_back({{"dim", dim},
                              {"square", d * d},
                              {"features", 1 + d + d * (d + 1) / 2},
                              {"methods", methods},
                              {"rows", Pivot(times, methods, "N")},
                              {"crossing", Crossing(polynomial, softmax)}});
  }
}

}  // namespace linnet::experiments
