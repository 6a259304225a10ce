#include "experiments/page.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"

namespace linnet::experiments {

using nlohmann::json;

std::string Digits(double value) {
  char text[64];
  if (value > 0 && value < 0.00995) {
    std::snprintf(text, sizeof(text), "%.2g", value);
    return text;
  }
  if (value >= 999.5) {
    std::snprintf(text, sizeof(text), "%.0f", value);
    std::string digits = text;
    for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
    return digits;
  }
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : value >= 0.9995 ? 2 : 3;
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

namespace {

std::string Formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string Format(const json& value, const std::string& format) {
  if (value.is_null()) return "–";
  if (value.is_string()) return value;
  const double number = value;  // throws unless it is a number
  if (format.empty()) {
    const bool whole = value.is_number_integer() && std::abs(number) < 1000;
    return whole ? value.dump() : Digits(number);
  }
  static const std::map<std::string, std::string (*)(double)> formats = {
      {"digits", Digits},
      {"whole", [](double x) { return x < 999.5 ? Formatted("%.0f", x) : Digits(x); }},
      {"plain", [](double x) { return StrCat(x); }},
      {"count", FormatCount},
      {"bytes", FormatBytes},
      {"percent", [](double x) { return Digits(100 * x); }},
      {"percent2", [](double x) { return Formatted("%.2f", 100 * x); }},
      {"f2", [](double x) { return Formatted("%.2f", x); }},
      {"f3", [](double x) { return Formatted("%.3f", x); }},
      {"e2", [](double x) { return Formatted("%.2e", x); }},
      {"milli", [](double x) { return Digits(1e3 * x); }},
      {"threads", [](double x) { return StrCat(x, x == 1 ? " thread" : " threads"); }},
  };
  return formats.at(format)(number);
}

// Escapes text from records, so that it has no effect as Markdown.
std::string Escaped(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f ||
        std::string_view("|<>`").find(c) != std::string_view::npos) {
      c = '?';
    }
  }
  return text;
}

class Renderer {
 public:
  explicit Renderer(const json& values) : scopes_{&values} {}

  std::string Expand(std::string_view text) {
    std::string out;
    while (true) {
      const size_t open = text.find("{{");
      out += text.substr(0, open);
      if (open == text.npos) return out;
      text.remove_prefix(open);
      const bool raw = text.starts_with("{{{");
      const std::string tag(text.substr(2 + raw, text.find("}}") - 2 - raw));
      text.remove_prefix(tag.size() + 4 + 2 * raw);
      if (tag[0] == '#' || tag[0] == '^') {
        const std::string end = "{{/" + tag.substr(1) + "}}";
        std::string_view body = text.substr(0, text.find(end));
        text.remove_prefix(body.size() + end.size());
        // A tag alone on its line leaves no empty line.
        if ((out.empty() || out.ends_with('\n')) && body.starts_with('\n')) body.remove_prefix(1);
        if (body.ends_with('\n') && text.starts_with('\n')) text.remove_prefix(1);
        out += Section(tag, body);
      } else {
        const size_t bar = tag.find('|');
        const json* value = Find(tag.substr(0, bar));
        if (value == nullptr) scopes_.front()->at(tag.substr(0, bar));  // throws
        const std::string format = bar == tag.npos ? "" : tag.substr(bar + 1);
        const std::string shown = Format(*value, format);
        out += raw ? shown : Escaped(shown);
      }
    }
  }

 private:
  // The innermost value at that path, or null.
  const json* Find(const std::string& path) const {
    if (path == ".") return scopes_.back();
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const json* value = *scope;
      std::istringstream fields(path);
      for (std::string field; value != nullptr && std::getline(fields, field, '.');) {
        const auto found = value->is_object() ? value->find(field) : value->end();
        value = found == value->end() ? nullptr : &*found;
      }
      if (value != nullptr) return value;
    }
    return nullptr;
  }

  std::string Section(const std::string& tag, std::string_view body) {
    const json* value = Find(tag.substr(1));
    const bool holds = value != nullptr && !value->is_null() && *value != false && *value != 0 &&
                       *value != "" && !(value->is_array() && value->empty());
    if (tag[0] == '^') return holds ? "" : Expand(body);
    std::string out;
    const auto once = [&](const json& scope) {
      scopes_.push_back(&scope);
      out += Expand(body);
      scopes_.pop_back();
    };
    if (holds && value->is_array()) {
      for (const json& element : *value) once(element);
    } else if (holds) {
      once(*value);
    }
    return out;
  }

  std::vector<const json*> scopes_;  // outermost first
};

// Wraps paragraphs at 120 characters; leaves headings, tables, code and HTML unchanged.
std::string Wrap(const std::string& text) {
  constexpr size_t kWidth = 120;
  std::istringstream lines(text);
  std::string wrapped, current;
  bool code = false;
  const auto end = [&] {
    if (!current.empty()) wrapped += current + "\n";
    current.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    const bool fence = line.starts_with("```");
    if (code || fence || line.empty() ||
        std::string_view("#|<").find(line[0]) != std::string_view::npos) {
      end();
      wrapped += line + "\n";
      code ^= fence;
      continue;
    }
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (!current.empty() && current.size() + 1 + word.size() > kWidth) end();
      current += (current.empty() ? "" : " ") + word;
    }
  }
  end();
  return wrapped;
}

}  // namespace

std::string Render(std::string_view page_template, const json& values) {
  return Wrap(Renderer(values).Expand(page_template));
}

}  // namespace linnet::experiments
