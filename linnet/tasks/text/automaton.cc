#include "linnet/tasks/text/automaton.h"

#include <algorithm>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "linnet/base/utf8.h"
#include "linnet/error.h"

namespace linnet::grammar {
namespace {

constexpr size_t kMostStates = 1 << 16;
constexpr size_t kMostSteps = 1 << 20;  // limits repetitions of nothing
constexpr CodeRange kSurrogates = {0xd800, 0xdfff};
constexpr char32_t kLastCode = 0x10ffff;

using Bytes = std::span<const uint8_t>;

InputError TooLarge() {
  return InputError("the grammar is too large: it needs more than ", kMostStates, " states");
}

Bytes BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

Expression NotIn(std::vector<CodeRange> ranges) {
  ranges.push_back(kSurrogates);
  std::sort(ranges.begin(), ranges.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.low < b.low; });
  std::vector<CodeRange> rest;
  char32_t next = 0;
  for (const CodeRange& range : ranges) {
    if (next < range.low) rest.push_back({next, static_cast<char32_t>(range.low - 1)});
    next = std::max<char32_t>(next, range.high + 1);
  }
  if (next <= kLastCode) rest.push_back({next, kLastCode});
  return Set(std::move(rest));
}

// Each method appends the transitions of an expression after a state, and returns the state that
// follows the expression.
class Automaton::Compiler {
 public:
  explicit Compiler(const GrammarRules& rules) : rules_(rules), callers_(rules.bodies.size()) {
    for (size_t i = 0; i < rules.bodies.size(); ++i) NewState();
    for (size_t i = 0; i < rules.bodies.size(); ++i) {
      rule_ = static_cast<int32_t>(i);
      At(Append(rules.bodies[i], rule_)).last = true;
    }
    for (State& state : states_) {
      for (Call& call : state.calls) call.tail = EndsAt(call.to);
    }
    FindEmptyRules();
    CheckRecursion();
  }
  std::vector<State> Take() { return std::move(states_); }

 private:
  State& At(int32_t index) { return states_[static_cast<size_t>(index)]; }
  int32_t NewState() {
    if (states_.size() == kMostStates) throw TooLarge();
    states_.emplace_back();
    return static_cast<int32_t>(states_.size() - 1);
  }
  // A new state that follows `from` without a byte.
  int32_t After(int32_t from) {
    const int32_t to = NewState();
    At(from).empty.push_back(to);
    return to;
  }

  int32_t Append(const Expression& expression, int32_t from) {
    if (++steps_ > kMostSteps) throw TooLarge();
    switch (expression.kind) {
      case Expression::Kind::kText:
        for (const uint8_t byte : BytesOf(expression.text)) {
          const int32_t to = NewState();
          At(from).ranges.push_back({byte, byte, to});
          from = to;
        }
        return from;
      case Expression::Kind::kSet: {
        const int32_t to = NewState();
        for (const CodeRange& codes : expression.ranges) AppendCodes(codes, from, to);
        return to;
      }
      case Expression::Kind::kSequence:
        for (const Expression& part : expression.parts) from = Append(part, from);
        return from;
      case Expression::Kind::kChoice: {
        const int32_t to = NewState();
        for (const Expression& part : expression.parts) At(Append(part, from)).empty.push_back(to);
        return to;
      }
      case Expression::Kind::kRepeat:
        return AppendRepeat(expression, from);
      case Expression::Kind::kRule: {
        const int32_t to = NewState();
        At(from).calls.push_back({static_cast<int32_t>(expression.rule), to});
        callers_[expression.rule].push_back(rule_);
        return to;
      }
    }
    return from;
  }

  int32_t AppendRepeat(const Expression& repeat, int32_t from) {
    const Expression& part = repeat.parts[0];
    for (size_t i = 0; i < repeat.least; ++i) from = Append(part, from);
    from = After(from);  // so that a loop begins at a state of its own
    if (repeat.most == Expression::kUnlimited) {
      At(Append(part, from)).empty.push_back(from);
      return After(from);
    }
    std::vector<int32_t> ends = {from};
    for (size_t i = repeat.least; i < repeat.most; ++i) ends.push_back(from = Append(part, from));
    const int32_t to = NewState();
    for (const int32_t end : ends) At(end).empty.push_back(to);
    return to;
  }

  // Adds transitions for the UTF-8 of a range of code points, without the surrogates.
  void AppendCodes(CodeRange codes, int32_t from, int32_t to) {
    // In each of these ranges, all code points have the same length in UTF-8.
    constexpr CodeRange kParts[] = {{0, 0x7f},
                                    {0x80, 0x7ff},
                                    {0x800, kSurrogates.low - 1},
                                    {kSurrogates.high + 1, 0xffff},
                                    {0x10000, kLastCode}};
    for (const CodeRange& part : kParts) {
      const char32_t low = std::max(codes.low, part.low), high = std::min(codes.high, part.high);
      if (low > high) continue;
      std::string first, last;
      AppendUtf8(low, first), AppendUtf8(high, last);
      AppendBytes(BytesOf(first), BytesOf(last), from, to);
    }
  }
  // Adds transitions for the characters whose UTF-8 lies between `low` and `high`, which have equal
  // lengths.
  void AppendBytes(Bytes low, Bytes high, int32_t from, int32_t to) {
    if (low.size() == 1) return At(from).ranges.push_back({low[0], high[0], to});
    // All bytes after the first are 0x80 to 0xbf.
    constexpr uint8_t kSmallest[] = {0x80, 0x80, 0x80}, kLargest[] = {0xbf, 0xbf, 0xbf};
    const Bytes smallest = Bytes(kSmallest).first(low.size() - 1);
    const Bytes largest = Bytes(kLargest).first(low.size() - 1);
    const Bytes low_rest = low.subspan(1), high_rest = high.subspan(1);
    const auto add = [&](uint8_t begin, uint8_t end, Bytes rest_low, Bytes rest_high) {
      const int32_t middle = NewState();
      At(from).ranges.push_back({begin, end, middle});
      AppendBytes(rest_low, rest_high, middle, to);
    };
    if (low[0] == high[0]) return add(low[0], low[0], low_rest, high_rest);
    int begin = low[0], end = high[0];
    if (!std::equal(smallest.begin(), smallest.end(), low_rest.begin())) {
      add(low[0], low[0], low_rest, largest), ++begin;
    }
    if (!std::equal(largest.begin(), largest.end(), high_rest.begin())) {
      add(high[0], high[0], smallest, high_rest), --end;
    }
    if (begin > end) return;
    add(static_cast<uint8_t>(begin), static_cast<uint8_t>(end), smallest, largest);
  }

  // The states that follow `from` without a byte, including itself.
  std::vector<int32_t> Following(int32_t from) {
    std::vector<int32_t> reached = {from};
    std::unordered_set<int32_t> seen = {from};
    const auto reach = [&](int32_t next) {
      if (seen.insert(next).second) reached.push_back(next);
    };
    for (size_t i = 0; i < reached.size(); ++i) {
      const State& at = At(reached[i]);
      for (const int32_t next : at.empty) reach(next);
      for (const Call& call : at.calls) {
        if (empty_.contains(call.rule)) reach(call.to);
      }
    }
    return reached;
  }
  // Whether only the end of the rule follows `state`.
  bool EndsAt(int32_t state) {
    bool last = false;
    for (const int32_t i : Following(state)) {
      if (!At(i).ranges.empty() || !At(i).calls.empty()) return false;
      last = last || At(i).last;
    }
    return last;
  }
  void FindEmptyRules() {
    std::vector<int32_t> open;
    for (size_t i = 0; i < callers_.size(); ++i) open.push_back(static_cast<int32_t>(i));
    while (!open.empty()) {
      const int32_t rule = open.back();
      open.pop_back();
      if (empty_.contains(rule)) continue;
      const std::vector<int32_t> reached = Following(rule);
      if (std::none_of(reached.begin(), reached.end(), [&](int32_t i) { return At(i).last; })) {
        continue;
      }
      empty_.insert(rule);
      const std::vector<int32_t>& callers = callers_[static_cast<size_t>(rule)];
      open.insert(open.end(), callers.begin(), callers.end());
    }
  }
  // A rule that begins with itself would call itself forever. Searches for a cycle among the rules
  // that each rule can begin with.
  void CheckRecursion() {
    enum class Mark : uint8_t { kNew, kOpen, kDone };
    struct Step {
      size_t rule;
      std::vector<size_t> left;  // rules that it can begin with, to be visited
    };
    std::vector<Mark> marks(callers_.size(), Mark::kNew);
    std::vector<Step> path;
    const auto enter = [&](size_t rule) {
      marks[rule] = Mark::kOpen;
      path.push_back({rule, {}});
      for (const int32_t at : Following(static_cast<int32_t>(rule))) {
        for (const Call& call : At(at).calls) {
          path.back().left.push_back(static_cast<size_t>(call.rule));
        }
      }
    };
    for (size_t root = 0; root < marks.size(); ++root) {
      if (marks[root] == Mark::kNew) enter(root);
      while (!path.empty()) {
        Step& step = path.back();
        if (step.left.empty()) {
          marks[step.rule] = Mark::kDone;
          path.pop_back();
          continue;
        }
        const size_t next = step.left.back();
        step.left.pop_back();
        if (marks[next] == Mark::kOpen) {
          throw InputError("the rule '", rules_.names[next],
                           "' can begin with itself; write a repetition (x*), or put the recursion "
                           "at the end");
        }
        if (marks[next] == Mark::kNew) enter(next);
      }
    }
  }

  const GrammarRules& rules_;
  std::vector<State> states_;
  size_t steps_ = 0;                           // number of calls of Append()
  int32_t rule_ = 0;                           // the rule that is compiled
  std::vector<std::vector<int32_t>> callers_;  // the rules that call each rule
  std::unordered_set<int32_t> empty_;          // rules that can read nothing
};

Automaton::Automaton(const GrammarRules& rules)
    : states_(Compiler(rules).Take()), start_(static_cast<int32_t>(rules.root)) {}

}  // namespace linnet::grammar
