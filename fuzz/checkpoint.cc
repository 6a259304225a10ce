// Opens a safetensors file as a model (header, spec, tensors, packing) and runs one step.
#include <vector>

#include "fuzz/target.h"
#include "linnet/engine.h"
#include "linnet/model.h"

namespace linnet::fuzz {

const FuzzTarget kCheckpoint = {
    "checkpoint", [](std::span<const std::byte> bytes) {
      const auto model = Model::FromMemory(bytes, "input");
      if (model->spec().ReadsFrames() || model->spec().encoder_decoder()) return;
      Engine engine(model, {.threads = 1});
      State state = engine.NewState(1);
      std::vector<float> outputs(engine.output_size());
      const int32_t token = 0;
      engine.Step(state, {&token, 1}, outputs);
    }};

}  // namespace linnet::fuzz
