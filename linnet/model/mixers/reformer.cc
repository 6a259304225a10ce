#include "linnet/model/mixer.h"

namespace linnet {
namespace {

std::string DescribeHashing(const MixerSpec& spec) {
  return StrCat(spec.kind, " (", NameOf(spec.lsh_variant), "), ", spec.lsh_rounds, " rounds, ",
                spec.lsh_buckets, " buckets, chunks of ", spec.lsh_chunk);
}

std::string BeyondHashing(const MixerSpec& spec) {
  if (spec.lsh_variant == LshVariant::kSimple) return "";
  return "reformer as published; fast-transformers has lsh_variant simple";
}

}  // namespace

MixerInfo ReformerInfo() {
  return {.name = "reformer",
          .description = "softmax over the keys in the same hash buckets (LSH)",
          .causal = true,
          .scales = true,
          .options = {"lsh_rounds", "lsh_buckets", "lsh_chunk", "lsh_variant"},
          .describe = DescribeHashing,
          .beyond = BeyondHashing};
}

}  // namespace linnet
