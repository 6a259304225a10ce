// JSON out of files that people and programs wrote: stricter than the parser, which takes the last of
// two equal keys and nests as deep as it is told to.
//
//   std::string fault;
//   nlohmann::json object = ParseJson(text, 8, fault);
//   if (!fault.empty()) throw InputError(path, ": ", fault);   // "has 'layers' twice"
#ifndef LINNET_IO_JSON_H_
#define LINNET_IO_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace linnet {

// The value that `text` holds. Where it is no JSON, holds a key twice in one object or nests deeper
// than `max_depth`, `fault` says so ("is not valid JSON") and the value is null; else it is emptied.
nlohmann::json ParseJson(std::string_view text, int max_depth, std::string& fault);

// A name from a file for a message: in quotes, cut short, without control characters.
std::string Quote(std::string_view name);

}  // namespace linnet

#endif  // LINNET_IO_JSON_H_
