// Pages of experiments: fills Markdown templates (pages/NAME.md, embedded in the program) with
// values.
//
//   {{date}}                a value by its path: a string; an integer below 1000 as it is; another
//                           number by Digits(); null as a dash
//   {{rate / first.rate}}   an expression, see Evaluate()
//   {{loss|%.2e}}           a number in a printf format, or in a named one of Format() in page.cc
//   {{{text}}}              unescaped; otherwise | < > ` and control characters become '?'
//   {{#rows}}...{{/rows}}   the text between, once for each element of a list; once if the value is
//                           true, a string, a number or an object (but not "" or 0). Their fields
//                           are then in scope, and {{.}} is the element or value itself
//   {{#rows|, }}...         the same, with ", " between the elements
//   {{^rows}}...{{/rows}}   the text between if the value is false, null, empty, zero or missing
//   {{#a = b}}...{{/a = b}} the text between if the value of a is the text b; {{^a = b}} if not
//
// These are Mustache's rules, except for expressions, '|' and '='. A section must not contain a
// section of the same name.
#ifndef EXPERIMENTS_PAGE_H_
#define EXPERIMENTS_PAGE_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "linnet/base/function_ref.h"

namespace linnet::experiments {

// Paths are looked up in `values`, then in `outer`. Both must outlive the scope.
struct Scope {
  const nlohmann::json& values;
  const Scope* outer = nullptr;
};

// The value at a path, from the innermost scope that has its first name, or nullopt. "a.b" is a
// field, "a.2" the third element of a list, "a.last" its last element (null if the list is empty),
// "a.*.b" the list of the fields b of all elements, and "." scope.values. A field of null is null.
std::optional<nlohmann::json> Find(std::string_view path, const Scope& scope);

// Evaluates an expression of paths, numbers, + - * / between spaces, parentheses, and functions of
// lists or of several values: first, last, min, max, mean, count, floor (of the first value),
// and `or` (the first value for which a section would be shown). Arithmetic applies to each element
// of a list; with null it gives null. Throws nlohmann::json::exception if a value is missing or of
// another type, RuntimeError for invalid syntax.
nlohmann::json Evaluate(std::string_view expression, const Scope& scope);

// The elements for which a section with that path (or condition "a = b") is shown.
nlohmann::json Elements(std::string_view path, const Scope& scope);

// Calls body(scope) for each element at the path `each` (a template). For a list of paths, calls it
// for each combination of their elements; the elements of earlier paths are in scope of later ones:
// ["sets", "asked", "name = {{.}}"] gives the sets whose name is in the list "asked". For null,
// calls it once.
void ForEach(const nlohmann::json& each, const Scope& scope, FunctionRef<void(const Scope&)> body);

// Expands the tags of a template. Throws as Evaluate().
std::string Fill(std::string_view text, const Scope& scope);
// Wraps paragraphs; leaves headings, tables, code and HTML unchanged.
std::string Wrap(const std::string& text, size_t width);
// Fills the template of a page and wraps it. A line ![TEXT](NAME.svg) becomes a picture with
// NAME-dark.svg for dark pages.
std::string Render(const std::string& page_template, const Scope& scope);

// Formats with three significant digits, or the whole integer part with thousands separators; below
// 0.1, with two significant digits: "1,234", "12.3", "0.012".
std::string Digits(double value);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_PAGE_H_
