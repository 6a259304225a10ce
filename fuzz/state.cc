// Reads saved states, and runs one step from them.
#include <vector>

#include "fuzz/target.h"
#include "linnet/engine.h"
#include "linnet/model.h"
#include "linnet/state.h"

namespace linnet::fuzz {

const FuzzTarget kState = {"state", [](std::span<const std::byte> bytes) {
                             State state = State::FromBytes(bytes, "input", *TextModel());
                             static Engine engine(TextModel(), {.threads = 1});
                             if (state.batch() == 0 || state.batch() > 64) return;
                             const std::vector<int32_t> tokens(state.batch());
                             std::vector<float> outputs(state.batch() * engine.output_size());
                             engine.Step(state, tokens, outputs);
                           }};

}  // namespace linnet::fuzz
