#include "experiments/page.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <regex>
#include <sstream>
#include <vector>

#include "linnet/base/units.h"
#include "linnet/error.h"

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
  if (format[0] == '%') return Formatted(format.c_str(), number);
  static const std::map<std::string, std::string (*)(double)> formats = {
      {"digits", Digits},
      {"whole", [](double x) { return x < 999.5 ? Formatted("%.0f", x) : Digits(x); }},
      {"plain", [](double x) { return StrCat(x); }},
      {"count", FormatCount},
      {"bytes", FormatBytes},
      {"percent", [](double x) { return Digits(100 * x); }},
      {"percent2", [](double x) { return Formatted("%.2f", 100 * x); }},
      {"change", [](double x) { return Formatted("%+.1f%%", std::abs(x) < 5e-4 ? 0 : 100 * x); }},
      {"milli", [](double x) { return Digits(1e3 * x); }},
      {"threads", [](double x) { return StrCat(x, x == 1 ? " thread" : " threads"); }},
  };
  return formats.at(format)(number);
}

// Replaces special characters in text from records, so that they do not act as Markdown.
std::string Escaped(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f ||
        std::string_view("|<>`").find(c) != std::string_view::npos) {
      c = '?';
    }
  }
  return text;
}

std::optional<json> Walk(const json& value, std::string_view path) {
  if (path.empty() || value.is_null()) return value;
  const std::string field(path.substr(0, path.find('.')));
  path.remove_prefix(std::min(path.size(), field.size() + 1));
  if (value.is_object()) {
    const auto found = value.find(field);
    return found == value.end() ? std::nullopt : Walk(*found, path);
  }
  if (!value.is_array()) return std::nullopt;
  if (field == "*") {
    json all = json::array();
    for (const json& element : value) {
      std::optional<json> one = Walk(element, path);
      if (!one) return std::nullopt;
      all.push_back(std::move(*one));
    }
    return all;
  }
  if (field == "last") return value.empty() ? json() : Walk(value.back(), path);
  size_t index = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), index);
  if (error != std::errc() || *end != 0) return std::nullopt;
  return index < value.size() ? Walk(value[index], path) : json();
}

bool Holds(const json& value) {
  return !value.is_null() && value != false && value != 0 && value != json("");
}

// Calls the expression language's function `name`. `list`: its arguments, with lists flattened.
json Evaluate(const std::string& name, const json& list) {
  if (name == "count") return list.size();
  if (list.empty()) return nullptr;
  if (name == "first") return list.front();
  if (name == "last") return list.back();
  if (name == "or") {
    for (const json& value : list) {
      if (Holds(value)) return value;
    }
    return nullptr;
  }
  const auto numbers = list.get<std::vector<double>>();  // throws for other types
  if (name == "min") return *std::min_element(list.begin(), list.end());
  if (name == "max") return *std::max_element(list.begin(), list.end());
  if (name == "floor") return static_cast<int64_t>(std::floor(numbers[0]));
  if (name == "mean") {
    return std::accumulate(numbers.begin(), numbers.end(), 0.0) /
           static_cast<double>(numbers.size());
  }
  throw RuntimeError("pages have no function '", name, "'");
}

json Combine(char op, const json& a, const json& b) {
  if (a.is_array() || b.is_array()) {
    json all = json::array();
    for (size_t i = 0; i < (a.is_array() ? a : b).size(); ++i) {
      all.push_back(Combine(op, a.is_array() ? a.at(i) : a, b.is_array() ? b.at(i) : b));
    }
    return all;
  }
  if (a.is_null() || b.is_null()) return nullptr;
  const double x = a, y = b;
  const double value = op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : x / y;
  if (op == '/' || !a.is_number_integer() || !b.is_number_integer()) return value;
  return static_cast<int64_t>(value);
}

// Parses an expression by recursive descent, and evaluates it at the same time.
class Expression {
 public:
  Expression(std::string_view text, const Scope& scope) : rest_(text), scope_(scope) {}

  json Sum() {
    return Chain("+-", [this] { return Chain("*/", [this] { return Atom(); }); });
  }
  bool done() const { return rest_.empty(); }

 private:
  bool Take(std::string_view token) {
    const bool next = rest_.starts_with(token);
    if (next) rest_.remove_prefix(token.size());
    return next;
  }

  // Parses operands joined by any of these operators, each between spaces.
  json Chain(std::string_view operators, FunctionRef<json()> operand) {
    json value = operand();
    while (rest_.size() > 2 && rest_[0] == ' ' && operators.find(rest_[1]) != operators.npos) {
      const char op = rest_[1];
      rest_.remove_prefix(3);
      value = Combine(op, value, operand());
    }
    return value;
  }

  json Atom() {
    size_t end = rest_.find_first_of("(),");
    for (const char* op : {" + ", " - ", " * ", " / "}) end = std::min(end, rest_.find(op));
    const std::string name(rest_.substr(0, end));
    rest_.remove_prefix(name.size());
    if (Take("(")) {
      json all = json::array();
      do {
        const json value = Sum();
        if (value.is_array()) {
          all.insert(all.end(), value.begin(), value.end());
        } else {
          all.push_back(value);
        }
      } while (Take(", "));
      if (!Take(")")) throw RuntimeError("pages: ')' is missing in an expression");
      return name.empty() ? all.at(0) : Evaluate(name, all);
    }
    double number = 0;
    const auto [last, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && *last == 0) {
      return number == std::floor(number) ? json(static_cast<int64_t>(number)) : json(number);
    }
    if (std::optional<json> value = Find(name, scope_)) return *value;
    return json::object().at(name);  // throws
  }

  std::string_view rest_;
  const Scope& scope_;
};

std::string Section(const std::string& tag, std::string_view body, const Scope& scope) {
  const size_t bar = tag.find('|');
  const json elements = Elements(std::string_view(tag).substr(0, bar).substr(1), scope);
  if (tag[0] == '^') return elements.empty() ? Fill(body, scope) : "";
  std::string out;
  for (const json& element : elements) {
    if (!out.empty() && bar != tag.npos) out += tag.substr(bar + 1);
    out += Fill(body, {element, &scope});
  }
  return out;
}

}  // namespace

std::optional<json> Find(std::string_view path, const Scope& scope) {
  if (path == ".") return scope.values;
  const std::string_view first = path.substr(0, path.find('.'));
  const bool here = Walk(scope.values, first).has_value() || scope.outer == nullptr;
  return here ? Walk(scope.values, path) : Find(path, *scope.outer);
}

json Evaluate(std::string_view text, const Scope& scope) {
  Expression expression(text, scope);
  json value = expression.Sum();
  if (!expression.done()) throw RuntimeError("pages: '", text, "' is not an expression");
  return value;
}

json Elements(std::string_view path, const Scope& scope) {
  const size_t equals = path.find(" = ");
  const json value = Find(path.substr(0, equals), scope).value_or(nullptr);
  if (equals != path.npos) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    return text == path.substr(equals + 3) ? json::array({scope.values}) : json::array();
  }
  if (value.is_array()) return value;
  return Holds(value) ? json::array({value}) : json::array();
}

void ForEach(const json& each, const Scope& scope, FunctionRef<void(const Scope&)> body) {
  if (each.is_string()) return ForEach(json::array({each}), scope, body);
  if (each.empty()) return body(scope);
  json others = each;
  others.erase(0);
  for (const json& element : Elements(Fill(each.at(0).get<std::string>(), scope), scope)) {
    ForEach(others, {element, &scope}, body);
  }
}

std::string Fill(std::string_view text, const Scope& scope) {
  std::string out;
  while (true) {
    const size_t open = text.find("{{");
    out += text.substr(0, open);
    if (open == text.npos) return out;
    text.remove_prefix(open);
    const bool raw = text.starts_with("{{{");
    const std::string tag(text.substr(2 + raw, text.find("}}") - 2 - raw));
    text.remove_prefix(tag.size() + 4 + 2 * raw);
    const size_t bar = tag.find('|');
    if (tag[0] == '#' || tag[0] == '^') {
      const std::string end = "{{/" + tag.substr(1, bar - 1) + "}}";
      std::string_view body = text.substr(0, text.find(end));
      text.remove_prefix(body.size() + end.size());
      // A tag alone on its line leaves no empty line.
      if ((out.empty() || out.ends_with('\n')) && body.starts_with('\n')) body.remove_prefix(1);
      if (body.ends_with('\n') && text.starts_with('\n')) text.remove_prefix(1);
      out += Section(tag, body, scope);
    } else {
      const std::string shown = Format(Evaluate(std::string_view(tag).substr(0, bar), scope),
                                       bar == tag.npos ? "" : tag.substr(bar + 1));
      out += raw ? shown : Escaped(shown);
    }
  }
}

std::string Wrap(const std::string& text, size_t width) {
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
      if (!current.empty() && current.size() + 1 + word.size() > width) end();
      current += (current.empty() ? "" : " ") + word;
    }
  }
  end();
  return wrapped;
}

std::string Render(const std::string& page_template, const Scope& scope) {
  static const std::regex plot(R"(!\[(.*)\]\((.*)\.svg\))");
  const std::string picture =
      "<picture>\n<source media=\"(prefers-color-scheme: dark)\" srcset=\"$2-dark.svg\">\n"
      "<img alt=\"$1\" src=\"$2.svg\">\n</picture>";
  return Wrap(Fill(std::regex_replace(page_template, plot, picture), scope), 120);
}

}  // namespace linnet::experiments
