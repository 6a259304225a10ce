// Reads WAV, FLAC and SPHERE through libsndfile, and resamples.
#include "linnet/tasks/speech/audio.h"
#include "fuzz/target.h"

namespace linnet::fuzz {

const FuzzTarget kAudio = {
    "audio", [](std::span<const std::byte> bytes) { ParseAudio(bytes, "input", 16'000); }};

}  // namespace linnet::fuzz
