// Measurements as descriptions specify them: commands, and trainings of all methods.
//
// A command is a list of arguments. One that is a single tag of a page, "{{batch}}", is the value as
// it is (of a list, each element); other texts are templates (page.h). {"each": path, "add": [...]}
// adds arguments for each element of that section, {"unless": path, "add": [...]} where it is empty:
//
//   ["bench", "step", "--batch", "{{batch}}", {"each": "threads", "add": ["--threads", "{{threads}}"]}]
//
// A measurement runs a command for each element of the nested lists "each", and keeps each answer
// until the page is written:
//
//   {"each": ["datasets", "methods"], "says": T, "name": T, "command": [...],
//    "only": the "name" of the records that are taken, "keep": the fields, if not all,
//    "add": {field: E}}
//
// "training" describes how "methods" are trained:
//
//   {"flags": command, "schedule": further flags, which may depend on `steps` and on those in
//    "let": {name: E}, kept in the record; "seeds": E, trainings of a method, whose number is
//    `seed`, if not one with the option's; "share" of a budget for updates; "least" updates;
//    "curve": [metrics]}
#ifndef EXPERIMENTS_MEASURE_H_
#define EXPERIMENTS_MEASURE_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/experiment.h"
#include "experiments/page.h"

namespace linnet::experiments {

std::vector<std::string> Command(const nlohmann::json& described, const Scope& scope);

// The records of a measurement.
nlohmann::json Measured(const Call& call, const nlohmann::json& described, const Scope& scope);

// Times updates of every method, one right after the other so that other load affects all of them,
// decides how many each makes, and trains them. `scope` holds
// "wanted", an expression: the updates of a method if time is unlimited, which may depend on
// `seconds` of an update; "budget" ("2h", or null); and "equal_time": whether a budget is shared as
// equal times or as equal updates. Calls finish(method, run) for each training, which is then added to the list returned:
// {"method", "seed", "steps", "seconds_an_update", "training_seconds", "epochs", "parameters",
// "peak_memory", "curve": [[step, metrics...]]}.
using Finish = std::function<void(const nlohmann::json& method, nlohmann::json& run)>;
nlohmann::json Trained(const Call& call, const Scope& scope, const Finish& finish);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_MEASURE_H_
