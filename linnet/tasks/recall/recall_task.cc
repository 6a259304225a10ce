#include "linnet/tasks/recall/recall_task.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "linnet/error.h"

namespace linnet {

MaskedBatch MakeRecallBatch(const RecallTask& task, int batch, Philox rng) {
  constexpr int kMost = 1 << 20;  // maximum of task.symbols
  if (batch < 1 || task.pairs < 1 || task.symbols < task.pairs || task.symbols > kMost) {
    throw InputError("recall task: batch and pairs must be at least 1, symbols between pairs and ",
                     kMost, "; got ", batch, ", ", task.pairs, " and ", task.symbols);
  }
  const auto pairs = static_cast<size_t>(task.pairs);
  MaskedBatch result;
  result.batch = batch, result.length = task.sequence_length();
  const size_t length = 4 * pairs, total = static_cast<size_t>(batch) * length;
  result.tokens.resize(total), result.targets.resize(total), result.mask.resize(total);
  std::vector<int64_t> keys(static_cast<size_t>(task.symbols)), values(pairs);
  // Puts `count` randomly chosen elements first, in random order.
  const auto shuffle = [&](auto& elements, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      std::swap(elements[i], elements[i + rng.Below(static_cast<uint32_t>(elements.size() - i))]);
    }
  };
  for (size_t start = 0; start < total; start += length) {
    std::iota(keys.begin(), keys.end(), 1);
    shuffle(keys, pairs);
    for (int64_t& value : values) {
      value = 1 + task.symbols + rng.Below(static_cast<uint32_t>(task.symbols));
    }
    std::vector<size_t> order(pairs);
    std::iota(order.begin(), order.end(), size_t{0});
    shuffle(order, pairs);
    int64_t* tokens = result.tokens.data() + start;
    for (size_t i = 0; i < pairs; ++i) {
      tokens[2 * i] = keys[i], tokens[2 * i + 1] = values[i];
      const size_t at = 2 * (pairs + i);
      tokens[at] = keys[order[i]], tokens[at + 1] = values[order[i]];
      result.mask[start + at] = 1;
    }
    std::copy(tokens + 1, tokens + length, result.targets.data() + start);
  }
  return result;
}

}  // namespace linnet
