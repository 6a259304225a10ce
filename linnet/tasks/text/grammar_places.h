// A grammar as a deterministic automaton, whose states are made when they are needed.
//
//   Places places(automaton);
//   int32_t place = places.start();
//   place = places.Next(place, 'a');                       // kNowhere: 'a' cannot follow
//   if (place != kNowhere && places[place].complete) ...   // the text is in the grammar
#ifndef LINNET_TASKS_TEXT_GRAMMAR_PLACES_H_
#define LINNET_TASKS_TEXT_GRAMMAR_PLACES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "linnet/tasks/text/automaton.h"

namespace linnet::grammar {

// One way to read a text: a state of the automaton, and the index of the frame on top of its stack
// (-1: the stack is empty).
struct Reading {
  int32_t state, frame;
  auto operator<=>(const Reading&) const = default;  // NOLINT(modernize-use-nullptr): not one
};

constexpr int32_t kNowhere = -1, kUnknown = -2;

// All readings of a text, which decide the texts that can follow.
struct Place {
  std::vector<Reading> readings;  // sorted; only states with transitions that read a byte
  bool complete = false;          // the text is in the grammar
  // The place after each byte: an index, kNowhere or kUnknown. Empty: kUnknown for all bytes.
  std::vector<int32_t> next = {};
};

class Places {
 public:
  explicit Places(std::shared_ptr<const Automaton> automaton);

  int32_t start() const { return 0; }
  const Place& operator[](int32_t place) const { return places_[static_cast<size_t>(place)]; }
  // Whether there are so many places that most of them should be forgotten.
  bool full() const;

  // The place after a byte, or kNowhere if the byte cannot follow. Throws GrammarError if the work
  // exceeds a limit, which protects a server from ambiguous grammars. AllowWork(): called for each
  // token, allows some more.
  int32_t Next(int32_t place, uint8_t byte);
  void AllowWork();
  // Forgets all places except one. Returns its new index.
  int32_t Keep(int32_t place);

 private:
  // A call of a rule that has not returned. The frames of a stack are a linked list, and stacks
  // share frames.
  struct Frame {
    int32_t to;     // the state after the call
    int32_t below;  // index of the next frame; -1: none
    int32_t depth;  // number of frames, including this one
  };

  int32_t Push(int32_t to, int32_t below);
  int32_t Read(int32_t place, uint8_t byte);
  // The place of these readings and of all that follow them without a byte.
  int32_t Close(std::vector<Reading> open);
  int32_t IndexOf(std::vector<Reading> readings, bool complete);
  void Work(size_t steps);

  std::shared_ptr<const Automaton> automaton_;
  std::vector<Place> places_;
  std::map<std::pair<std::vector<Reading>, bool>, int32_t> indices_;  // of places_
  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, int32_t> frame_indices_;
  std::unordered_set<uint64_t> seen_;  // Close() reuses its memory
  size_t readings_ = 0;                // of all places
  size_t work_ = 0;                    // that is still allowed
};

}  // namespace linnet::grammar

#endif  // LINNET_TASKS_TEXT_GRAMMAR_PLACES_H_
