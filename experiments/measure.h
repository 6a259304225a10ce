// Measurements and trainings specified by a description (pages/NAME.json). E is an expression, T a
// template (page.h).
//
// A command is a list of arguments. An argument that is a single tag, "{{batch}}", becomes the
// unformatted value, or one argument for each element of a list; other strings are templates.
// {"each": path, "add": [...]} adds arguments once for each element at the path (see Elements());
// {"unless": path, "add": [...]} adds arguments if there is no element:
//
//   ["bench", "step", "--batch", "{{batch}}",
//    {"each": "threads", "add": ["--threads", "{{threads}}"]}]
//
// A measurement runs a command for each combination of elements of the lists in "each", and keeps
// the command's JSON output, the answer, until the page is written:
//
//   {"each": ["datasets", "methods"], "says": T, "name": T, "command": [...],
//    "only": the "name" of the records to keep, "keep": their fields to keep (default: all),
//    "add": {field: E}}
//
// It prints "says" and saves the answer under "name" (Lab::Measure). MeasureRecords() runs the
// description's "measure" with all options in scope. (For the description's "keep", see Begin().)
//
// "training" describes how "methods" are trained:
//
//   "flags"     command: arguments of `linnet train`
//   "schedule"  command: further arguments, which may depend on `steps` and on the values in "let"
//   "let"       {name: E}, values added to the record of the run
//   "seeds"     E, number of trainings of a method, with `seed` 1, 2, ...; without it: one
//   "share"     share of the budget for updates (default: 1)
//   "least"     minimum number of updates (default: 1)
//   "curve"     metrics of the curve, see CurveOf in record.h
#ifndef EXPERIMENTS_MEASURE_H_
#define EXPERIMENTS_MEASURE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/experiment.h"
#include "experiments/page.h"

namespace linnet::experiments {

// The arguments of a described command.
std::vector<std::string> Command(const nlohmann::json& described, const Scope& scope);

// Adds Origin() and the options named in the description's "keep" to a new record. Returns the
// values for commands: all options, and "processors", the number of threads to use.
nlohmann::json Begin(const Call& call, nlohmann::json& record);

// Runs a described measurement and returns its records.
nlohmann::json Measured(const Call& call, const nlohmann::json& described, const Scope& scope);

// Times an update of every method, decides how many updates each makes, and trains the methods.
// `scope` has "wanted", an expression for that number, in which `seconds` is the time of an update;
// "budget" ("2h" or null), which may lower it; and "equal_time": whether the budget gives all
// methods equal times (true) or equal numbers of updates. Calls finish(run) after each training,
// then adds the run to the returned list: {"method", "seed", "steps", "seconds_an_update",
// "training_seconds", "epochs", "parameters", "peak_memory", "curve": [[step, metrics...]]}.
nlohmann::json Trained(const Call& call, const Scope& scope,
                       FunctionRef<void(nlohmann::json& run)> finish);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_MEASURE_H_
