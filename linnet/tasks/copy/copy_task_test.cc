#include "linnet/tasks/copy/copy_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "linnet/io/test_util.h"

namespace linnet {
namespace {

using ::testing::HasSubstr;

TEST(CopyTask, SamplesHaveTheRightLayout) {
  const CopyTask task{.max_length = 17, .symbols = 4, .min_length = 3};
  const CopyBatch batch = MakeCopyBatch(task, 500, Philox(1));
  ASSERT_EQ(batch.length, 35);
  ASSERT_EQ(batch.tokens.size(), 500u * 35);
  ASSERT_EQ(batch.lengths.size(), 500u);
  for (int b = 0; b < batch.batch; ++b) {
    const int64_t* x = batch.tokens.data() + b * batch.length;
    const int64_t* y = batch.targets.data() + b * batch.length;
    const float* mask = batch.mask.data() + b * batch.length;
    const int n = batch.lengths[static_cast<size_t>(b)];
    for (int t = 0; t < batch.length; ++t) {
      if (t < n) {
        EXPECT_TRUE(x[t] >= 1 && x[t] <= 4);
        EXPECT_EQ(x[n + 1 + t], x[t]);
      } else if (t == n || t > 2 * n) {
        EXPECT_EQ(x[t], 0);
      }
      EXPECT_EQ(y[t], t + 1 < batch.length ? x[t + 1] : 0);
      EXPECT_EQ(mask[t], t >= n - 1 && t <= 2 * n - 1 ? 1.0f : 0.0f);
    }
  }
  EXPECT_EQ(*std::min_element(batch.lengths.begin(), batch.lengths.end()), 3);
  EXPECT_EQ(*std::max_element(batch.lengths.begin(), batch.lengths.end()), 16);
  EXPECT_EQ(*std::max_element(batch.tokens.begin(), batch.tokens.end()), 4);
  EXPECT_EQ(task.vocabulary(), 5);
}

TEST(CopyTask, SamplesDependOnTheSeedOnly) {
  const CopyBatch a = MakeCopyBatch({}, 3, Philox(1, 2)), b = MakeCopyBatch({}, 3, Philox(1, 2));
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.lengths, b.lengths);
  EXPECT_NE(a.tokens, MakeCopyBatch({}, 3, Philox(1, 3)).tokens);
  EXPECT_NE(a.tokens, MakeCopyBatch({}, 3, Philox(2, 2)).tokens);
}

TEST(CopyTask, ShortestTasks) {
  for (int max_length : {1, 2, 3, 9, 10, 11}) {
    const CopyBatch batch = MakeCopyBatch({.max_length = max_length}, 50, Philox(1));
    for (int32_t n : batch.lengths) {
      EXPECT_GE(n, std::min(10, std::max(1, max_length - 1)));
      EXPECT_LE(n, std::max(1, max_length - 1));
    }
  }
}

TEST(CopyTask, RefusesEmptyTasks) {
  EXPECT_THAT(ErrorOf([] { MakeCopyBatch({}, 0, Philox(1)); }), HasSubstr("at least 1"));
  EXPECT_THAT(ErrorOf([] { MakeCopyBatch({.max_length = 0}, 1, Philox(1)); }),
              HasSubstr("at least 1"));
  EXPECT_THAT(ErrorOf([] { MakeCopyBatch({.symbols = 0}, 1, Philox(1)); }),
              HasSubstr("at least 1"));
}

}  // namespace
}  // namespace linnet
