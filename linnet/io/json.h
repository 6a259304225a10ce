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
#include <vector>

namespace linnet {

// The value that `text` holds. Where it is no JSON, holds a key twice in one object or nests deeper
// than `max_depth`, `fault` says so ("is not valid JSON") and the value is null; else it is emptied.
nlohmann::json ParseJson(std::string_view text, int max_depth, std::string& fault);
// The same with keys in the order of the text. Time grows with the square of an object's keys, so the
// text must be short.
nlohmann::ordered_json ParseOrderedJson(std::string_view text, int max_depth, std::string& fault);

// A text from a file for a message: cut short, without control characters.
std::string Brief(std::string_view text);
// A name from a file for a message: the same in quotes.
std::string Quote(std::string_view name);
// The first names, quoted, and how many more there are.
std::string QuoteAll(const std::vector<std::string>& names);

// JSON as it was, but for the control characters that JSON lets pass (DEL and U+0080 to U+009F),
// which become escapes: a terminal may obey them.
std::string EscapeControls(std::string_view json);

}  // namespace linnet

#endif  // LINNET_IO_JSON_H_
