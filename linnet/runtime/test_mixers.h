// The models of mixer_conformance_test.cc: every registered mixer, with its options.
#ifndef LINNET_RUNTIME_TEST_MIXERS_H_
#define LINNET_RUNTIME_TEST_MIXERS_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "linnet/model/mixer.h"
#include "linnet/model/spec.h"

namespace linnet {

inline constexpr size_t kLongest = 200;  // longer than a block and than the models' max_length
inline constexpr int kMaxLength = 60;

struct MixerCase {
  std::string name;
  ModelSpec spec;
};

// Sizes that do not fill whole SIMD vectors, but are large enough that narrow models also have
// several groups.
inline ModelSpec Small(const std::vector<MixerSpec>& pattern) {
  ModelSpec spec;
  spec.stack.pattern = pattern;
  for (MixerSpec& mixer : spec.stack.pattern) {
    mixer.heads = 4, mixer.query_dim = 5, mixer.value_dim = 23, mixer.features = 12;
    mixer.lsh_rounds = 2, mixer.lsh_buckets = 6, mixer.lsh_chunk = 7;
  }
  spec.stack.repeat = 2;
  spec.stack.d_model = 30, spec.stack.d_ff = 150, spec.stack.activation = Activation::kGelu;
  spec.head.kind = HeadKind::kCategorical;
  spec.input.max_length = kMaxLength, spec.input.value_embedding = 22;
  return spec;
}

inline ModelSpec OfTokens(const std::vector<MixerSpec>& pattern) {
  ModelSpec spec = Small(pattern);
  spec.task = "text";
  spec.part = TextSpec{.unit = TextUnit::kCharacter, .characters = "abcdefghijklm"};
  spec.input.vocabulary = spec.head.classes = 16;
  return spec;
}

inline ModelSpec OfFrames(const std::vector<MixerSpec>& pattern) {
  ModelSpec spec = Small(pattern);
  spec.task = "speech";
  spec.part = SpeechSpec{.bands = 7,
                         .stack = 3,
                         .stride = 2,
                         .lookahead = 1,
                         .normalization = BandNorm::kCorpus,
                         .phones = "A B C"};
  spec.input.vocabulary = spec.head.classes = 4;
  return spec;
}

// Variants of a mixer's options, each with a name.
inline std::vector<std::pair<std::string, MixerSpec>> Variants(const MixerInfo& info) {
  std::vector<std::pair<std::string, MixerSpec>> variants;
  std::string name = info.name;
  std::replace(name.begin(), name.end(), '-', '_');
  MixerSpec spec;
  spec.kind = info.name;
  if (info.maps) {
    for (const FeatureMapInfo& map : FeatureMaps()) {
      if (!map.fused && map.single == nullptr) continue;  // for training only
      spec.feature_map = map.name;
      variants.emplace_back(name + "_" + map.name, spec);
    }
  } else if (info.name == "kernel") {
    for (const Similarity similarity :
         {Similarity::kSoftmax, Similarity::kPolynomial2, Similarity::kRbf}) {
      spec.similarity = similarity;
      variants.emplace_back(name + "_" + NameOf(similarity), spec);
    }
  } else if (info.name == "reformer") {
    for (const LshVariant variant : {LshVariant::kPublished, LshVariant::kSimple}) {
      spec.lsh_variant = variant, spec.scale = variant == LshVariant::kSimple ? 0.7f : 0;
      variants.emplace_back(name + "_" + NameOf(variant), spec);
    }
  } else {
    variants.emplace_back(name, spec);
    const auto add = [&](const char* kind, const char* variant, MixerSpec changed) {
      if (info.name != kind) return;
      changed.kind = kind;
      variants.emplace_back(StrCat(name, "_", variant), changed);
    };
    add("full", "scaled", {.scale = 0.7f});
    // Windows below and above the lengths of the pieces. key_heads must divide the 4 heads of
    // Small().
    add("full", "window", {.window = 8});
    add("full", "window_of_one", {.window = 1, .key_heads = 2});
    MixerSpec modern{.window = 61, .rotary = true, .rotary_base = 500, .key_heads = 1};
    modern.qkv_bias = modern.out_bias = false;
    add("full", "modern", modern);
    add("full", "rotary_grouped", {.rotary = true, .key_heads = 2});
    // With the usual eps, a head whose output is very small would fail: the norm magnifies its
    // rounding to bf16 beyond the tolerance.
    add("gla", "grouped", {.key_heads = 2, .output_norm_eps = 0.01f});
    add("retention", "grouped", {.key_heads = 2});
    add("gated-delta-product", "grouped", {.key_heads = 2, .householders = 3});
    add("ssd", "grouped", {.key_heads = 2});
    add("ssd", "one_group", {.key_heads = 1});
    add("hgrn", "bounded", {.short_convolution = 0, .lower_bound = true});
  }
  return variants;
}

inline std::vector<MixerCase> MakeCases() {
  std::vector<MixerCase> cases;
  const auto add = [&](const std::string& name, ModelSpec spec, int convolution = 0,
                       bool norm_first = false) {
    spec.stack.convolution = convolution, spec.stack.norm_first = norm_first;
    cases.push_back({name, spec});
  };
  const auto mixer = [](const char* kind) {
    MixerSpec spec;
    spec.kind = kind;
    return spec;
  };
  for (const MixerInfo& info : Mixers()) {
    bool first = true;
    for (const auto& [name, spec] : Variants(info)) {
      add(name + "_frames", OfFrames({spec}), 0, !first);
      if (info.causal) add(name + "_tokens", OfTokens({spec}), 0, !first);
      if (info.causal && !info.cross.empty()) {
        ModelSpec pair = OfTokens({spec});
        pair.network = NetworkKind::kEncoderDecoder;
        add(name + "_pair", pair, 0, !first);
        if (first) add(name + "_pair_first", pair, 0, true);
      }
      if (first) {
        add(name + "_frames_convolution", OfFrames({spec}), 5);
        if (info.causal) add(name + "_tokens_convolution", OfTokens({spec}), 4, true);
      }
      first = false;
    }
  }
  // Models with values carried to later layers, token shifts in every block, and a norm of the
  // embeddings.
  MixerSpec rwkv7 = mixer("rwkv7");
  rwkv7.decay_rank = 5, rwkv7.rate_rank = 3, rwkv7.gate_rank = 7;
  MixerSpec reading = rwkv7;
  reading.value_rank = 4;
  for (const bool norm_first : {false, true}) {
    ModelSpec shifted = OfTokens({rwkv7, reading, mixer("full"), reading});
    shifted.stack.feed_forward = FeedForwardKind::kShifted;
    shifted.input.norm = true;
    add(norm_first ? "shifted_first_tokens" : "shifted_tokens", shifted, 0, norm_first);
  }
  add("carried_frames", OfFrames({rwkv7, reading}), 3);
  const MixerSpec linear = mixer("causal-linear"), full = mixer("full"), kernel = mixer("kernel"),
                  reformer = mixer("reformer");
  MixerSpec floored = linear;
  floored.feature_map = "rff";
  add("hybrid_tokens", OfTokens({linear, full, kernel}), 3);
  add("hybrid_floored_tokens", OfTokens({floored, full}), 0, true);
  MixerSpec window = full;
  window.window = 9, window.rotary = true;
  add("hybrid_window_tokens", OfTokens({mixer("gated-delta-net"), window}), 0, true);
  add("hybrid_window_frames", OfFrames({linear, window}), 0, true);
  add("hybrid_hashing_tokens", OfTokens({linear, reformer}));
  add("hybrid_hashing_floored_tokens", OfTokens({reformer, floored}), 3);
  // A bidirectional mixer makes the network non-causal; a causal mixer in it stays causal.
  add("hybrid_frames", OfFrames({linear, full}), 3);
  add("hybrid_floored_frames", OfFrames({floored, mixer("linear")}));
  add("hybrid_causal_frames", OfFrames({linear, floored}), 4, true);
  ModelSpec pair = OfTokens({linear, full});
  pair.network = NetworkKind::kEncoderDecoder;
  add("hybrid_pair", pair);
  ModelSpec lstm = OfFrames({linear});
  lstm.network = NetworkKind::kLstm;
  add("lstm_frames", lstm);
  return cases;
}

inline const std::vector<MixerCase>& Cases() {
  static const std::vector<MixerCase> cases = MakeCases();
  return cases;
}

}  // namespace linnet

#endif  // LINNET_RUNTIME_TEST_MIXERS_H_
