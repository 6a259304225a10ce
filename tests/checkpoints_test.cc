// Models and states written by earlier commits still load and compute the same outputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "linnet/engine.h"
#include "linnet/tasks/speech/speech_encoder.h"

namespace linnet {
namespace {

using Floats = std::vector<float>;

const std::filesystem::path kFolder = "tests/checkpoints";

// Outputs at the last position of the inputs that tests/checkpoints/README.md defines.
Floats LastOutputs(const std::shared_ptr<const Model>& model) {
  const ModelSpec& spec = model->spec();
  if (spec.ReadsFrames()) {
    SpeechEncoder encoder(model);
    constexpr size_t kRows = 20;
    Floats inputs(kRows * encoder.inputs()), all(kRows * encoder.classes());
    for (size_t j = 0; j < inputs.size(); ++j) {
      inputs[j] = std::sin(0.7f * static_cast<float>(j % 101));
    }
    encoder.Encode(inputs, all);
    return {all.end() - static_cast<ptrdiff_t>(encoder.classes()), all.end()};
  }
  Engine engine(model, {.threads = 1});
  const int length = std::min(24, spec.input.max_length);
  State state = engine.NewState(1);
  Floats out(engine.output_size());
  for (int t = 0; t < length; ++t) {
    const int32_t token = (7 * t + 3) % spec.input.vocabulary;
    engine.Step(state, {&token, 1}, out);
  }
  return out;
}

void ExpectNear(const Floats& got, const Floats& want, const std::string& what,
                double tolerance = 1e-5) {
  ASSERT_GE(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], tolerance * std::max(1.0f, std::abs(want[i])))
        << what << " at " << i;
  }
}

TEST(Checkpoints, OldModelsGiveTheSameOutputs) {
  std::map<std::string, Floats> expected;
  std::ifstream lines(kFolder / "outputs.txt");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::string name;
    in >> name;
    for (float value; in >> value;) expected[name].push_back(value);
  }
  ASSERT_GE(expected.size(), 20u);
  size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string name = entry.path().stem().string();
    const Floats got = LastOutputs(Model::Open(entry.path().string()));
    for (const float value : got) ASSERT_TRUE(std::isfinite(value)) << name;
    const auto want = expected.find(name);
    if (want == expected.end()) continue;  // the version that wrote the model could not run it
    // bf16 and int8 round activations, and rounding may differ between instruction sets.
    const bool narrow = name.ends_with("bf16") || name.ends_with("int8");
    ExpectNear(got, want->second, name, narrow ? 0.1 : 1e-5);
    ++found;
  }
  EXPECT_EQ(found, expected.size());
}

TEST(Checkpoints, OldStatesContinue) {
  const auto model = Model::Open((kFolder / "text-byte.safetensors").string());
  Engine engine(model, {.threads = 1});
  State state = State::Load((kFolder / "text-byte.state").string(), *model);
  EXPECT_EQ(state.position(), 7u);
  Floats want, got(engine.output_size());
  std::ifstream numbers(kFolder / "text-byte.state.outputs.txt");
  for (float value; numbers >> value;) want.push_back(value);
  ASSERT_EQ(want.size(), got.size());
  const int32_t token = 3 + 'a';
  engine.Step(state, {&token, 1}, got);
  ExpectNear(got, want, "text-byte.state");
}

}  // namespace
}  // namespace linnet
