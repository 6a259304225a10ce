// The rules of a grammar as expressions, which grammar_notation.h and json_schema.h make and
// automaton.h compiles.
//
//   GrammarRules rules;
//   const size_t list = rules.Declare();
//   rules.Define(list, Sequence(Text("["), Optional(Rule(list)), Text("]")));     // [], [[]], ...
#ifndef LINNET_TASKS_TEXT_GRAMMAR_RULES_H_
#define LINNET_TASKS_TEXT_GRAMMAR_RULES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace linnet::grammar {

// The code points from `low` to `high`.
struct CodeRange {
  char32_t low, high;
};

struct Expression {
  // kText: the bytes of `text`. kSet: one code point in `ranges`, in UTF-8. kSequence, kChoice: all
  // or one of `parts`. kRepeat: parts[0], `least` to `most` times. kRule: the rule of index `rule`.
  enum class Kind : uint8_t { kText, kSet, kSequence, kChoice, kRepeat, kRule };
  static constexpr size_t kUnlimited = SIZE_MAX;

  Kind kind = Kind::kText;
  std::string text = {};
  std::vector<CodeRange> ranges = {};
  std::vector<Expression> parts = {};
  size_t least = 0, most = 0;
  size_t rule = 0;
};

inline Expression Text(std::string text) { return {.text = std::move(text)}; }
inline Expression Rule(size_t rule) { return {.kind = Expression::Kind::kRule, .rule = rule}; }
// One code point in `ranges`, which may overlap.
Expression Set(std::vector<CodeRange> ranges);
// One code point that is not in `ranges`.
Expression NotIn(std::vector<CodeRange> ranges);
inline Expression SequenceOf(std::vector<Expression> parts) {
  return {.kind = Expression::Kind::kSequence, .parts = std::move(parts)};
}
// No choice accepts no text at all.
inline Expression ChoiceOf(std::vector<Expression> parts) {
  return {.kind = Expression::Kind::kChoice, .parts = std::move(parts)};
}
template <class... Parts>
std::vector<Expression> ListOf(Parts... parts) {
  std::vector<Expression> list;
  (list.push_back(std::move(parts)), ...);
  return list;
}
template <class... Parts>
Expression Sequence(Parts... parts) {
  return SequenceOf(ListOf(std::move(parts)...));
}
template <class... Parts>
Expression Choice(Parts... parts) {
  return ChoiceOf(ListOf(std::move(parts)...));
}
inline Expression Repeat(Expression part, size_t least, size_t most = Expression::kUnlimited) {
  Expression repeat{.kind = Expression::Kind::kRepeat, .least = least, .most = most};
  repeat.parts.push_back(std::move(part));
  return repeat;
}
inline Expression Optional(Expression part) { return Repeat(std::move(part), 0, 1); }

struct GrammarRules {
  std::vector<Expression> bodies;
  std::vector<std::string> names;  // of the rules, for messages
  size_t root = 0;

  // Adds a rule, to be defined later. Returns its index.
  size_t Declare(std::string name = "") {
    bodies.emplace_back();
    names.push_back(std::move(name));
    return bodies.size() - 1;
  }
  void Define(size_t rule, Expression body) { bodies[rule] = std::move(body); }
  size_t Add(Expression body, std::string name = "") {
    const size_t rule = Declare(std::move(name));
    Define(rule, std::move(body));
    return rule;
  }
};

}  // namespace linnet::grammar

#endif  // LINNET_TASKS_TEXT_GRAMMAR_RULES_H_
