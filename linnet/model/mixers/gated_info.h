// Makes the MixerInfo of a gated recurrence (model/gated.h). Sets the fields that are the same for
// all gated recurrences.
//
//   MixerInfo GlaInfo() { return GatedInfo("gla", "linear attention with ...", {...}, Form); }
#ifndef LINNET_MODEL_MIXERS_GATED_INFO_H_
#define LINNET_MODEL_MIXERS_GATED_INFO_H_

#include <string>
#include <utility>
#include <vector>

#include "linnet/model/mixer.h"

namespace linnet {

// options: see MixerInfo::options.
inline MixerInfo GatedInfo(std::string name, std::string description,
                           std::vector<std::string> options,
                           GatedForm (*form)(const MixerSpec& spec)) {
  return {.name = std::move(name),
          .description = std::move(description),
          .causal = true,
          .always_causal = true,
          .recurrent = true,
          .constant_state = true,
          .options = std::move(options),
          .beyond = BeyondGated,
          .projections =
              [](const MixerSpec& spec) {
                return GatedProjections(spec, FindMixer(spec.kind).gated(spec));
              },
          .tensors =
              [](const MixerSpec& spec) {
                return GatedTensors(spec, FindMixer(spec.kind).gated(spec));
              },
          .gated = form,
          .out = "o_proj",
          .out_bias = false};
}

}  // namespace linnet

#endif  // LINNET_MODEL_MIXERS_GATED_INFO_H_
