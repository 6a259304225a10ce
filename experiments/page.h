// Pages about experiments: fills Markdown templates (pages/NAME.md, built in) with values.
//
//   {{date}}                a value by its path: a string, or a number to three significant digits
//   {{rate / first.rate}}   an expression, see Evaluate()
//   {{loss|e2}}             in another format: see page.cc
//   {{{text}}}              unescaped; otherwise Markdown's special characters become '?'
//   {{#rows}}...{{/rows}}   once for each element of a list, whose fields are then in scope;
//                           once if the value is true, a string, a number or an object;
//                           {{.}} is the value itself
//   {{#rows|, }}...         the same, with ", " between the elements
//   {{^rows}}...{{/rows}}   if the value is false, null, empty, zero or missing
//   {{#a = b}}...{{/a = b}} if the value of a is the text b; {{^a = b}} if it is not
//
// These are Mustache's rules, except for expressions, '|' and '='. A section must not contain a
// section of the same name. Paragraphs are wrapped at 120 characters.
#ifndef EXPERIMENTS_PAGE_H_
#define EXPERIMENTS_PAGE_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace linnet::experiments {

// Values in which paths are looked up, before those of `outer`. Both must outlive the scope.
struct Scope {
  const nlohmann::json& values;
  const Scope* outer = nullptr;
};

// The value at a path, from the innermost scope that has it: "a.b", the third element "a.2", the
// field of every element "a.*.b", "." the innermost values. A field of null is null.
std::optional<nlohmann::json> Find(std::string_view path, const Scope& scope);

// Paths, numbers, + - * / between spaces, parentheses, and functions of lists or of several values:
// first, last, min, max, mean, sum, count, floor, and `or`, the first that a section would show.
// Arithmetic with a list is that with each element; with null it is null. Throws
// nlohmann::json::exception if a value is missing or of another type.
nlohmann::json Evaluate(std::string_view expression, const Scope& scope);

// The elements that a section of that path visits, see above.
nlohmann::json Elements(std::string_view path, const Scope& scope);

// Expands the tags. Throws as Evaluate().
std::string Fill(std::string_view text, const Scope& scope);
// The same with paragraphs wrapped.
std::string Render(std::string_view page_template, const Scope& scope);

// Three significant digits, with thousands separators: "1,234", "12.3", "0.0123".
std::string Digits(double value);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_PAGE_H_
