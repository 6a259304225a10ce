// Records: reading, checking and joining the JSON of measurements.
//
//   json record = ReadRecord("table1.json");
//   CheckRecord(record, {{"runs", {{"empty", "holds no run"}}},
//                        {"runs.*.bits_per_dim", "above 0"}});
//   for (const json& row : WithRuns(methods, record["runs"])) ... row["run"]["bits_per_dim"]
#ifndef EXPERIMENTS_RECORD_H_
#define EXPERIMENTS_RECORD_H_

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/plot/run_log.h"

namespace linnet::experiments {

// Parses JSON. Throws InputError, with a message that begins with `where`, if it is invalid.
nlohmann::json ParseRecord(const std::string& text, const std::string& where);
nlohmann::json ReadRecord(const std::filesystem::path& path);
void WriteRecord(const std::filesystem::path& path, const nlohmann::json& record);

// Returns a point [step, value of each metric] for each record of a training's log that has the
// first metric. Such a record must also have the other metrics.
nlohmann::json CurveOf(const plot::RunLog& log, const std::vector<std::string>& metrics);

// Calls check(), which checks the JSON of a file. Rethrows its InputError or nlohmann exception as
// an InputError with the file's name and `remedy`.
void CheckFile(const std::filesystem::path& file, const std::string& remedy,
               FunctionRef<void()> check);

// Checks the value at every path of `rules` (Find() in page.h); a path that ends in "?" may be
// missing. A rule is "text", "above 0", "0 or more", "whole" (a whole number above 0), [least,
// most], {"in": the allowed values}, or {"empty": an error message for an empty list}. Throws
// InputError, or a nlohmann exception for a missing field or another type.
void CheckRecord(const nlohmann::json& record, const nlohmann::json& rules);

// The first fields of a new record: {"machine", "date"}.
nlohmann::json Origin();
// The first record whose field `key` equals `value`, or null.
nlohmann::json FindRecord(const nlohmann::json& records, const char* key,
                          const nlohmann::json& value);
// All records whose field `key` equals `value`.
nlohmann::json RecordsWith(const nlohmann::json& records, const char* key,
                           const nlohmann::json& value);
// The field "value" of the record that FindRecord() finds, or null.
nlohmann::json ValueOf(const nlohmann::json& records, const char* key, const nlohmann::json& value);
// Joins the methods of a description with their records: adds to each method "runs", all its
// records, and "run", the first of them or null.
nlohmann::json WithRuns(const nlohmann::json& methods, const nlohmann::json& runs);
// As WithRuns, without the methods that have no record.
nlohmann::json MethodsRun(const nlohmann::json& methods, const nlohmann::json& runs);
// A table with a column for each method and a row for each value of the field `row`, in order of
// first appearance: [{ROW: value, "cells": [the "value" of each method's record, or null]}].
nlohmann::json Pivot(const nlohmann::json& records, const nlohmann::json& methods, const char* row);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_RECORD_H_
