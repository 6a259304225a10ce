// A batch of synthetic token sequences for the copy and recall tasks.
#ifndef LINNET_TASKS_MASKED_BATCH_H_
#define LINNET_TASKS_MASKED_BATCH_H_

#include <cstdint>
#include <vector>

namespace linnet {

struct MaskedBatch {
  int batch = 0, length = 0;
  std::vector<int64_t> tokens;   // [batch, length]
  std::vector<int64_t> targets;  // [batch, length], the next tokens, 0 at the end
  std::vector<float> mask;       // [batch, length], 1 where the target counts in the loss, else 0
};

}  // namespace linnet

#endif  // LINNET_TASKS_MASKED_BATCH_H_
