#include "linnet/tasks/copy/copy_task.h"

#include <algorithm>
#include <cstddef>

#include "linnet/error.h"

namespace linnet {

CopyBatch MakeCopyBatch(const CopyTask& task, int batch, Philox rng) {
  constexpr int kMaxLength = 1 << 24;
  if (batch < 1 || task.symbols < 1 || task.max_length < 1 || task.max_length > kMaxLength) {
    throw InputError(
        "copy task: batch, symbols and max_length must be at least 1, and max_length "
        "must be at most ",
        kMaxLength, "; got ", batch, ", ", task.symbols, " and ", task.max_length);
  }
  // Each sample has n tokens to copy, with n in [shortest, shortest + choices).
  const int shortest = std::clamp(task.min_length, 1, std::max(1, task.max_length - 1));
  const uint32_t choices = static_cast<uint32_t>(std::max(1, task.max_length - shortest));

  CopyBatch result;
  result.batch = batch;
  result.length = task.sequence_length();
  const size_t length = static_cast<size_t>(result.length);
  const size_t total = static_cast<size_t>(batch) * length;
  result.tokens.assign(total, 0);
  result.targets.assign(total, 0);
  result.mask.assign(total, 0.0f);
  for (size_t start = 0; start < total; start += length) {
    const size_t n = static_cast<size_t>(shortest) + rng.Below(choices);
    int64_t* tokens = result.tokens.data() + start;
    for (size_t t = 0; t < n; ++t) {
      tokens[t] = tokens[n + 1 + t] = 1 + rng.Below(static_cast<uint32_t>(task.symbols));
    }
    std::copy(tokens + 1, tokens + length, result.targets.data() + start);
    std::fill_n(result.mask.data() + start + n - 1, n + 1, 1.0f);
    result.lengths.push_back(static_cast<int32_t>(n));
  }
  return result;
}

}  // namespace linnet
