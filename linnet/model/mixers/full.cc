#include "linnet/model/mixer.h"

namespace linnet {
namespace {

std::string DescribeSoftmax(const MixerSpec& spec) {
  const bool grouped = spec.key_heads > 0 && spec.key_heads < spec.heads;
  return StrCat(spec.kind, spec.window > 0 ? StrCat(", window of ", spec.window) : "",
                spec.rotary ? ", rotary positions" : "",
                grouped ? StrCat(", ", spec.key_heads, " heads of keys and values") : "");
}

std::string BeyondSoftmax(const MixerSpec& spec) {
  if (spec.window > 0) return "softmax attention over a window";
  if (spec.rotary) return "rotary positions";
  if (spec.key_heads > 0 && spec.key_heads < spec.heads) return "shared heads of keys and values";
  return spec.qkv_bias && spec.out_bias ? "" : "projections without biases";
}

}  // namespace

MixerInfo FullInfo() {
  return {.name = "full",
          .description = "softmax attention (eq. 2) over all past keys and values, or a window",
          .causal = true,
          .recurrent = true,
          .scales = true,
          .windows = true,
          .cross = "full",
          .describe = DescribeSoftmax,
          .beyond = BeyondSoftmax};
}

}  // namespace linnet
