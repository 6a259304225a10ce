// Strict JSON parsing: unlike nlohmann's parser, it rejects duplicate keys and limits nesting.
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

// Parses `text`. On a fault (invalid JSON, a key twice in one object, nesting deeper than
// `max_depth`) describes it in `fault` ("is not valid JSON") and returns null; else clears `fault`.
nlohmann::json ParseJson(std::string_view text, int max_depth, std::string& fault);
// Like ParseJson(), but keeps an object's keys in the order of the text. An object with more than
// 1,000 keys is a fault, because the time is quadratic in their number.
nlohmann::ordered_json ParseOrderedJson(std::string_view text, int max_depth, std::string& fault);

// Shortens text from a file for a message: at most 80 bytes, with '?' for each control character.
std::string Brief(std::string_view text);
// Brief(name) in single quotes.
std::string Quote(std::string_view name);
// The first ten names, each formatted by Quote(), and the number of further names.
std::string QuoteAll(const std::vector<std::string>& names);

// Escapes the control characters DEL and U+0080 to U+009F in a JSON text. JSON allows them
// unescaped, but a terminal may execute them.
std::string EscapeControls(std::string_view json);

}  // namespace linnet

#endif  // LINNET_IO_JSON_H_
