// A grammar as a nondeterministic pushdown automaton over bytes.
#ifndef LINNET_TASKS_TEXT_AUTOMATON_H_
#define LINNET_TASKS_TEXT_AUTOMATON_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "linnet/tasks/text/grammar_rules.h"

namespace linnet::grammar {

class Automaton {
 public:
  // Reads a byte from `low` to `high`.
  struct Range {
    uint8_t low, high;
    int32_t to;
  };
  // Reads a text of a rule, then continues at `to`. tail: nothing follows in the calling rule, so
  // the call need not return.
  struct Call {
    int32_t rule, to;
    bool tail = false;
  };
  struct State {
    std::vector<Range> ranges;
    std::vector<int32_t> empty;  // states that follow without a byte
    std::vector<Call> calls;
    bool last = false;  // the rule may end here
  };

  // Throws InputError if the automaton would be too large, and if a rule can begin with itself.
  explicit Automaton(const GrammarRules& rules);

  const State& state(int32_t index) const { return states_[static_cast<size_t>(index)]; }
  int32_t start() const { return start_; }

 private:
  class Compiler;

  std::vector<State> states_;  // those of indices below the number of rules begin the rules
  int32_t start_ = 0;
};

}  // namespace linnet::grammar

#endif  // LINNET_TASKS_TEXT_AUTOMATON_H_
