// Compares the engine, on whole sequences, in pieces and in steps, with language models of
// flash-linear-attention (RMS norms, gated recurrences, gated feed-forward blocks) and RWKV-7.
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

  // Reads all sequences, pieces[i] positions in call i (single positions by Step(), others by
  // Prefix()), and compares the logits.
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
    if (!golden_.rwkv.empty()) ExpectRwkvState(state);
  }

  // Compares the parts of the state: last inputs of the token shifts, and states of the recurrence.
  void ExpectRwkvState(const State& state) const {
    const std::vector<std::byte> bytes = state.ToBytes(*model_);
    const SafetensorsFile file = SafetensorsFile::FromMemory(bytes, "state");
    const std::span<const float> got = file.Get("state").f32();
    const std::vector<int64_t>& shape = golden_.file.Get("final_state").shape;
    const std::span<const double> states = golden_.file.Get("final_state").values<double>();
    const std::span<const double> shifts = golden_.file.Get("final_shift").values<double>();
    const size_t layers = static_cast<size_t>(shape[1]);
    const size_t size = states.size() / golden_.sequences / layers;
    const size_t width = shifts.size() / golden_.sequences / layers / 2;
    size_t at = 0;
    const auto expect = [&](std::span<const double> want, const char* what) {
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[at + i], want[i], 1e-4) << what;
      at += (want.size() + 15) / 16 * 16;  // each part is padded to 16 floats
    };
    for (size_t i = 0; i < golden_.sequences * layers; ++i) {
      expect(shifts.subspan(2 * i * width, width), "input of the mixer");
      expect(states.subspan(i * size, size), "state");
      expect(shifts.subspan((2 * i + 1) * width, width), "input of the feed-forward block");
    }
    EXPECT_EQ(at, got.size());
  }

  const GatedModel golden_;
  const std::shared_ptr<const Model> model_;
};

INSTANTIATE_TEST_SUITE_P(Golden, GatedModels, testing::Values("gated_delta_net", "gla", "rwkv7"));

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
