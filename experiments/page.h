// Pages about experiments: Markdown templates (pages/NAME.md, built in) filled with values.
//
//   {{date}}                a value, by its path: a string, or a number with three significant digits
//   {{loss|e2}}             the same in another format: see page.cc
//   {{{text}}}              as it is; else characters that Markdown would obey become question marks
//   {{#rows}}...{{/rows}}   once for each element of a list, whose fields then have names; once where
//                           the value is true, a text, a number or an object; {{.}} is the value itself
//   {{^rows}}...{{/rows}}   where it is false, null, empty, zero or missing
//
// These are Mustache's rules. A section's name may not stand inside the section itself. Paragraphs come
// out in lines of 120 characters.
#ifndef EXPERIMENTS_PAGE_H_
#define EXPERIMENTS_PAGE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace linnet::experiments {

// Throws nlohmann::json::exception where a value is missing.
std::string Render(std::string_view page_template, const nlohmann::json& values);

// Three significant digits, thousands apart: "1,234", "12.3", "0.0123".
std::string Digits(double value);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_PAGE_H_
