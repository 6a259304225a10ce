#include "linnet/tasks/text/automaton.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "linnet/base/utf8.h"
#include "linnet/error.h"

namespace linnet::grammar {
namespace {

constexpr size_t kMostStates = 1 << 16;
constexpr size_t kMostSteps = 1 << 20;   // limits repetitions of nothing
constexpr size_t kMostRanges = 1 << 18;  // of code points
constexpr CodeRange kSurrogates = {0xd800, 0xdfff};
constexpr char32_t kLastCode = 0x10ffff;

using Bytes = std::span<const uint8_t>;

InputError TooLarge() {
  return InputError("the grammar is too large; its automaton may have ", kMostStates, " states");
}

Bytes BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

Expression Set(std::vector<CodeRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.low < b.low; });
  Expression set{.kind = Expression::Kind::kSet};
  for (const CodeRange& range : ranges) {
    if (!set.ranges.empty() && range.low <= set.ranges.back().high + 1) {
      set.ranges.back().high = std::max(set.ranges.back().high, range.high);
    } else {
      set.ranges.push_back(range);
    }
  }
  return set;
}

Expression NotIn(std::vector<CodeRange> ranges) {
  ranges.push_back(kSurrogates);
  std::vector<CodeRange> rest;
  char32_t next = 0;
  for (const CodeRange& range : Set(std::move(ranges)).ranges) {
    if (next < range.low) rest.push_back({next, static_cast<char32_t>(range.low - 1)});
    next = range.high + 1;
  }
  if (next <= kLastCode) rest.push_back({next, kLastCode});
  return Set(std::move(rest));
}

// Each method appends the transitions of an expression after a state, and returns the state that
// follows the expression.
class Automaton::Compiler {
 public:
  explicit Compiler(const GrammarRules& rules) : rules_(rules) {
    for (size_t i = 0; i < rules.bodies.size(); ++i) owners_.push_back(NewState());
    for (size_t i = 0; i < rules.bodies.size(); ++i) {
      const auto rule = static_cast<int32_t>(i);
      At(Append(rules.bodies[i], rule)).last = true;
      owners_.resize(states_.size(), rule);
    }
    Prune();
    for (State& state : states_) {
      for (Call& call : state.calls) call.tail = EndsAt(call.to);
    }
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
      if (++ranges_ > kMostRanges) throw TooLarge();
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

  // Whether only the end of the rule follows `state`; may be false where that takes long to see.
  bool EndsAt(int32_t state) {
    constexpr size_t kMost = 32;
    bool last = false;
    std::vector<int32_t> reached = {state};
    for (size_t i = 0; i < reached.size(); ++i) {
      const State& at = At(reached[i]);
      if (!at.ranges.empty() || !at.calls.empty() || reached.size() > kMost) return false;
      last = last || at.last;
      reached.insert(reached.end(), at.empty.begin(), at.empty.end());
    }
    return last;
  }

  // What can be reached from the beginnings of the rules: `states`, and the ends of `rules`.
  struct Reach {
    std::vector<bool> states, rules;
  };
  // If `bytes`, by any text; else without reading a byte.
  Reach FindReach(bool bytes) {
    Reach reach{std::vector<bool>(states_.size()), std::vector<bool>(rules_.bodies.size())};
    std::vector<int32_t> open;
    std::vector<std::vector<int32_t>> waiting(rules_.bodies.size());  // for the end of each rule
    const auto enter = [&](int32_t state) {
      if (reach.states[static_cast<size_t>(state)]) return;
      reach.states[static_cast<size_t>(state)] = true;
      open.push_back(state);
    };
    for (size_t i = 0; i < rules_.bodies.size(); ++i) enter(static_cast<int32_t>(i));
    while (!open.empty()) {
      const State& state = At(open.back());
      const auto rule = static_cast<size_t>(owners_[static_cast<size_t>(open.back())]);
      open.pop_back();
      for (const int32_t to : state.empty) enter(to);
      if (bytes) {
        for (const Range& range : state.ranges) enter(range.to);
      }
      for (const Call& call : state.calls) {
        const auto called = static_cast<size_t>(call.rule);
        if (reach.rules[called]) {
          enter(call.to);
        } else {
          waiting[called].push_back(call.to);
        }
      }
      if (!state.last || reach.rules[rule]) continue;
      reach.rules[rule] = true;
      for (const int32_t to : waiting[rule]) enter(to);
    }
    return reach;
  }
  // Removes the transitions after which the text could not end. Throws InputError if no text can.
  void Prune() {
    const Reach reach = FindReach(/*bytes=*/true);
    if (!reach.rules[rules_.root]) {
      throw InputError("the grammar has no text: the rule '", rules_.names[rules_.root],
                       "' requires a choice without alternatives, or never ends");
    }
    // The states from which the rule can end, and the states before each state.
    std::vector<bool> ends(states_.size());
    std::vector<std::vector<int32_t>> before(states_.size());
    std::vector<int32_t> open;
    const auto enter = [&](int32_t state) {
      if (ends[static_cast<size_t>(state)]) return;
      ends[static_cast<size_t>(state)] = true;
      open.push_back(state);
    };
    const auto callable = [&](const Call& call) {
      return reach.rules[static_cast<size_t>(call.rule)];
    };
    for (size_t i = 0; i < states_.size(); ++i) {
      const auto from = static_cast<int32_t>(i);
      const auto add = [&](int32_t to) { before[static_cast<size_t>(to)].push_back(from); };
      for (const int32_t to : states_[i].empty) add(to);
      for (const Range& range : states_[i].ranges) add(range.to);
      for (const Call& call : states_[i].calls) {
        if (callable(call)) add(call.to);
      }
      if (states_[i].last) enter(from);
    }
    while (!open.empty()) {
      const int32_t state = open.back();
      open.pop_back();
      for (const int32_t from : before[static_cast<size_t>(state)]) enter(from);
    }
    const auto useless = [&](int32_t to) { return !ends[static_cast<size_t>(to)]; };
    for (State& state : states_) {
      std::erase_if(state.empty, useless);
      std::erase_if(state.ranges, [&](const Range& range) { return useless(range.to); });
      std::erase_if(state.calls,
                    [&](const Call& call) { return useless(call.to) || !callable(call); });
    }
  }
  // A rule that begins with itself would call itself forever. Searches for a cycle among the rules
  // that each rule can begin with.
  void CheckRecursion() {
    enum class Mark : uint8_t { kNew, kOpen, kDone };
    struct Step {
      size_t rule, visited;  // visited: number of its first calls
    };
    const Reach reach = FindReach(/*bytes=*/false);
    std::vector<std::vector<size_t>> first(rules_.bodies.size());  // the rules it can begin with
    for (size_t i = 0; i < states_.size(); ++i) {
      if (!reach.states[i]) continue;
      for (const Call& call : states_[i].calls) {
        first[static_cast<size_t>(owners_[i])].push_back(static_cast<size_t>(call.rule));
      }
    }
    std::vector<Mark> marks(first.size(), Mark::kNew);
    std::vector<Step> path;
    const auto enter = [&](size_t rule) {
      marks[rule] = Mark::kOpen;
      path.push_back({rule, 0});
    };
    for (size_t root = 0; root < marks.size(); ++root) {
      if (marks[root] == Mark::kNew) enter(root);
      while (!path.empty()) {
        Step& step = path.back();
        if (step.visited == first[step.rule].size()) {
          marks[step.rule] = Mark::kDone;
          path.pop_back();
          continue;
        }
        const size_t next = first[step.rule][step.visited++];
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
  std::vector<int32_t> owners_;  // the rule of each state
  size_t steps_ = 0;             // number of calls of Append()
  size_t ranges_ = 0;            // number of ranges of code points
};

Automaton::Automaton(const GrammarRules& rules)
    : states_(Compiler(rules).Take()), start_(static_cast<int32_t>(rules.root)) {}

}  // namespace linnet::grammar
