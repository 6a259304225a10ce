// A sequence that can take back the last tokens it has read: for editors, and for programs that
// find out late that a token was wrong.
//
//   History history(engine, engine.NewState(1), {.depth = 256});
//   std::span<const float> outputs = history.Prefix(prompt);
//   outputs = history.Step(7);
//   outputs = history.Undo(1);  // the outputs before Step(7), bit for bit
//
// A recurrent state cannot be computed backwards. So this class keeps a copy of it every few
// tokens. Undo() goes back to a copy and reads the remaining tokens again, in one pass. The state
// then continues with the bits of one that has never read the tokens taken back. With softmax
// attention, each copy has the keys and values of all tokens before it.
#ifndef LINNET_HISTORY_H_
#define LINNET_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "linnet/engine.h"
#include "linnet/export.h"
#include "linnet/state.h"

namespace linnet {

struct HistoryOptions {
  size_t depth = 256;  // number of tokens that can be taken back
  // Number of tokens between copies of the state. Undo() reads at most this many tokens again; in
  // the tokens of Prefix(), up to twice this many, or 64. There are about depth / every copies.
  size_t every = 16;
};

class LINNET_API History {
 public:
  // state: of one sequence; what it has read cannot be taken back. The engine must outlive this.
  // Throws InputError if the state has several sequences, or if an option is 0.
  History(Engine& engine, State state, const HistoryOptions& options = {});

  // Engine::Step() and Engine::Prefix(): read tokens, and return the outputs at the last one, valid
  // until the next call. Throw InputError as these do; nothing is read then.
  std::span<const float> Step(int32_t token);
  std::span<const float> Prefix(std::span<const int32_t> tokens);

  // Takes back the last `count` tokens. Returns the outputs at the token that is now the last one,
  // or no outputs if all tokens are taken back. A call of Prefix() of which some tokens remain
  // counts as one with these tokens only. Throws InputError if count > undoable().
  std::span<const float> Undo(size_t count);
  // The number of tokens that can be taken back: at most the depth, and less after Undo().
  size_t undoable() const;

  const State& state() const { return state_; }
  size_t bytes() const;  // of the copies and of the tokens after the first one

 private:
  struct Copy {
    size_t at;  // number of tokens read before it
    State state;
  };
  // How a token was read: by Step(), as the first token of Prefix(), or as another one.
  enum class ReadBy : uint8_t { kStep, kPrefix, kSamePrefix };
  struct Token {
    int32_t token;
    ReadBy by;
  };

  // Keeps a copy of the state if the last one is at least `distance` tokens old.
  void Keep(size_t distance);
  // Drops the copies and tokens that are too old.
  void Forget();
  // Returns to the state and the outputs after the first `target` tokens.
  void Return(size_t target);
  // Reads the tokens [begin, end) again.
  void ReadAgain(size_t begin, size_t end);

  Engine& engine_;
  const size_t depth_, every_;
  State state_;
  size_t read_ = 0;            // number of tokens, without those taken back
  std::deque<Copy> copies_;    // in the order of `at`; the first one is never after read_
  std::vector<Token> tokens_;  // those after the first copy
  std::vector<float> outputs_;
};

}  // namespace linnet

#endif  // LINNET_HISTORY_H_
