// Runs a model of the copy task: it reads tokens and the separator, then repeats the tokens.
//
//   const std::vector<int32_t> given = {3, 1, 4, 1, 5};
//   std::vector<int32_t> echo = CopyTokens(engine, given);   // ideally equal to `given`
#ifndef LINNET_TASKS_COPY_COPY_H_
#define LINNET_TASKS_COPY_COPY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "linnet/engine.h"

namespace linnet {

constexpr size_t kCopySequences = 200;  // default number of sequences in `linnet eval`

// Reads `tokens` (each in 1 .. vocabulary - 1) and the separator 0, then generates tokens.size()
// tokens by greedy decoding. Throws InputError if the model is of another task, if `tokens` is
// empty, if a token is out of range, or if 2 * tokens.size() + 1 exceeds the model's number of
// positions.
std::vector<int32_t> CopyTokens(Engine& engine, std::span<const int32_t> tokens);

}  // namespace linnet

#endif  // LINNET_TASKS_COPY_COPY_H_
