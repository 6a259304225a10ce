// Pages about experiments: fills Markdown templates (pages/NAME.md, built in) with values.
//
//   {{date}}                a value by its path: a string, or a number to three significant digits
//   {{loss|e2}}             the same in another format: see page.cc
//   {{{text}}}              unescaped; otherwise Markdown's special characters become '?'
//   {{#rows}}...{{/rows}}   once for each element of a list, whose fields are then in scope;
//                           once if the value is true, a string, a number or an object;
//                           {{.}} is the value itself
//   {{^rows}}...{{/rows}}   if the value is false, null, empty, zero or missing
//
// These are Mustache's rules. A section must not contain a section of the same name. Paragraphs are
// wrapped at 120 characters.
#ifndef EXPERIMENTS_PAGE_H_
#define EXPERIMENTS_PAGE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace linnet::experiments {

// Throws nlohmann::json::exception if a value is missing.
std::string Render(std::string_view page_template, const nlohmann::json& values);

// Three significant digits, with thousands separators: "1,234", "12.3", "0.0123".
std::string Digits(double value);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_PAGE_H_
