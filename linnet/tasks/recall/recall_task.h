// Associative recall: a sequence has key-value pairs, then each key again; after a repeated key,
// the model must predict its value (multi-query associative recall: Arora et al. 2023, "Zoology").
//
//   MaskedBatch batch = MakeRecallBatch({.pairs = 16, .symbols = 64}, 32, Philox(seed, step));
//
//   position   0    1    ..  2p-2  2p-1   2p   2p+1   ..  4p-2  4p-1
//   token      k_1  v_1  ..  k_p   v_p    k_i  v_i    ..  k_j   v_j     p = pairs
//   mask       0    0    ..  0     0      1    0      ..  1     0
//
// The keys of a sequence are distinct. Its second half repeats all pairs in random order. Keys are
// the tokens 1 .. symbols, values the tokens symbols + 1 .. 2 symbols. Token 0 does not occur.
#ifndef LINNET_TASKS_RECALL_RECALL_TASK_H_
#define LINNET_TASKS_RECALL_RECALL_TASK_H_

#include "linnet/rng.h"
#include "linnet/tasks/masked_batch.h"

namespace linnet {

struct RecallTask {
  int pairs = 16;
  int symbols = 64;  // size of the set of keys, and of the set of values; at least `pairs`

  int sequence_length() const { return 4 * pairs; }
  int vocabulary() const { return 2 * symbols + 1; }
};

// Makes `batch` sequences; the same `rng` gives the same sequences. Throws InputError on sizes
// below 1, on more pairs than symbols, and on more than 2^20 symbols.
MaskedBatch MakeRecallBatch(const RecallTask& task, int batch, Philox rng);

}  // namespace linnet

#endif  // LINNET_TASKS_RECALL_RECALL_TASK_H_
