// Resampling of audio (linnet/speech.h reads files).
//
//   std::vector<float> samples = Resample(audio.samples, 8000, 16'000);
#ifndef LINNET_TASKS_SPEECH_AUDIO_H_
#define LINNET_TASKS_SPEECH_AUDIO_H_

#include <span>
#include <vector>

#include "linnet/speech.h"

namespace linnet {

// Band-limited resampling. Rates must be in 1 .. 10,000,000 and their ratio at most 256.
std::vector<float> Resample(std::span<const float> samples, int from, int to);

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_AUDIO_H_
