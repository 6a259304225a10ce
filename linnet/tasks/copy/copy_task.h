// The copy task: a sequence of random tokens, a separator, and the same tokens again, which the
// model must repeat from memory.
//
//   CopyBatch batch = MakeCopyBatch({.max_length = 128}, 32, Philox(seed, step));
//
//   position   0    ..  n-1   n    n+1  ..  2n    2n+1 ..
//   token      s_1  ..  s_n   0    s_1  ..  s_n   0    ..     s_i is in 1 .. symbols
//   target     s_2  ..  0     s_1  s_2  ..  0     0    ..     the next token
//   mask       0    ..  1     1    1    ..  0     0    ..     1 on n-1 .. 2n-1
//
// Before position n, only the prediction of the separator, at position n-1, counts in the loss. A
// model cannot know n. But it may predict the separator at every position before n, because the
// other predictions there do not count. So the loss can reach zero. Accuracy should be counted from
// position n on, where the model has to copy.
#ifndef LINNET_TASKS_COPY_COPY_TASK_H_
#define LINNET_TASKS_COPY_COPY_TASK_H_

#include <cstdint>
#include <vector>

#include "linnet/rng.h"
#include "linnet/tasks/masked_batch.h"

namespace linnet {

struct CopyTask {
  int max_length = 128;  // n is uniform in [min_length, max_length)
  int symbols = 10;      // tokens to copy are 1 .. symbols
  int min_length = 10;   // clamped to 1 .. max_length - 1; if max_length is 1, n is 1

  int sequence_length() const { return 2 * max_length + 1; }
  int vocabulary() const { return symbols + 1; }
};

// A batch of samples. In `tokens`, all positions after the second s_1 .. s_n are 0.
struct CopyBatch : MaskedBatch {
  std::vector<int32_t> lengths;  // [batch]: n of each sample
};

// Makes `batch` samples of task.sequence_length() tokens; the same `rng` gives the same samples.
// Throws InputError unless batch, symbols and max_length are at least 1, and max_length is at most
// 2^24.
CopyBatch MakeCopyBatch(const CopyTask& task, int batch, Philox rng);

}  // namespace linnet

#endif  // LINNET_TASKS_COPY_COPY_TASK_H_
