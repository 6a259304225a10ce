#include "linnet/tasks/recall/recall_task.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "linnet/error.h"

namespace linnet {
namespace {

TEST(RecallTask, AsksForEveryPairOnce) {
  const RecallTask task{.pairs = 7, .symbols = 9};
  const MaskedBatch batch = MakeRecallBatch(task, 300, Philox(1));
  ASSERT_EQ(batch.length, 28);
  ASSERT_EQ(batch.tokens.size(), 300u * 28);
  std::set<int64_t> first_keys, first_asked, values;
  for (int b = 0; b < batch.batch; ++b) {
    const int64_t* x = batch.tokens.data() + b * batch.length;
    const int64_t* y = batch.targets.data() + b * batch.length;
    const float* mask = batch.mask.data() + b * batch.length;
    std::map<int64_t, int64_t> pairs, asked;
    for (int i = 0; i < 7; ++i) {
      pairs[x[2 * i]] = x[2 * i + 1];
      asked[x[14 + 2 * i]] = x[14 + 2 * i + 1];
      EXPECT_TRUE(x[2 * i] >= 1 && x[2 * i] <= 9);
      EXPECT_TRUE(x[2 * i + 1] >= 10 && x[2 * i + 1] <= 18);
      values.insert(x[2 * i + 1]);
    }
    EXPECT_EQ(pairs.size(), 7u);
    EXPECT_EQ(asked, pairs);
    first_keys.insert(x[0]), first_asked.insert(x[14]);
    for (int t = 0; t < batch.length; ++t) {
      EXPECT_EQ(y[t], t + 1 < batch.length ? x[t + 1] : 0);
      EXPECT_EQ(mask[t], t >= 14 && t % 2 == 0 ? 1.0f : 0.0f);
    }
  }
  EXPECT_EQ(first_keys.size(), 9u);
  EXPECT_EQ(first_asked.size(), 9u);
  EXPECT_EQ(values.size(), 9u);
}

TEST(RecallTask, RejectsInvalidSizes) {
  EXPECT_THROW(MakeRecallBatch({.pairs = 0}, 1, Philox(1)), InputError);
  EXPECT_THROW(MakeRecallBatch({.pairs = 65, .symbols = 64}, 1, Philox(1)), InputError);
  EXPECT_THROW(MakeRecallBatch({}, 0, Philox(1)), InputError);
}

}  // namespace
}  // namespace linnet
