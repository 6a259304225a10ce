// The engine on language models of flash-linear-attention: RMS norms, gated recurrences, gated
// feed-forward blocks; whole, in pieces and in steps.
#include "tests/gated_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "linnet/engine.h"
#include "linnet/model.h"

namespace linnet {
namespace {

class GatedModels : public testing::TestWithParam<std::string> {
 protected:
  GatedModels() : golden_(GetParam()), model_(Model::Open(golden_.Import())) {}

  // Reads all sequences in calls of these many positions; 1: steps.
  void Expect(const std::vector<size_t>& pieces, int threads) const {
    Engine engine(model_, {.threads = threads});
    State state = engine.NewState(golden_.sequences);
    const std::vector<int64_t> tokens = golden_.Tokens();
    const std::span<const double> want = golden_.Logits();
    const size_t width = engine.output_size(), length = golden_.length;
    double largest = 0;
    for (const double x : want) largest = std::max(largest, std::abs(x));
    size_t begin = 0;
    for (const size_t count : pieces) {
      std::vector<int32_t> read;
      for (size_t n = 0; n < golden_.sequences; ++n) {
        const auto from = tokens.begin() + static_cast<ptrdiff_t>(n * length + begin);
        read.insert(read.end(), from, from + static_cast<ptrdiff_t>(count));
      }
      std::vector<float> out(read.size() * width);
      if (count == 1) {
        engine.Step(state, read, out);
      } else {
        engine.Prefix(state, read, count, out);
      }
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t n = i / (count * width), within = i % (count * width);
        ASSERT_NEAR(out[i], want[(n * length + begin) * width + within], 1e-4 * largest)
            << "sequence " << n << ", position " << begin + within / width;
      }
      begin += count;
    }
    EXPECT_EQ(begin, length);
  }

  const GatedModel golden_;
  const std::shared_ptr<const Model> model_;
};

INSTANTIATE_TEST_SUITE_P(Golden, GatedModels, testing::Values("gated_delta_net", "gla"));

TEST_P(GatedModels, WholePiecesAndStepsGiveTheSourcesLogits) {
  const size_t length = golden_.length;
  for (const int threads : {1, 2}) {
    Expect({length}, threads);
    Expect({2, 3, length - 5}, threads);
    Expect({7, 1, length - 8}, threads);
    Expect(std::vector<size_t>(length, 1), threads);
  }
}

}  // namespace
}  // namespace linnet
