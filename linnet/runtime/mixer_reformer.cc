// Reformer attention over whole sequences. Hashing sorts all positions, so no state can replace the
// past. Keys are the normalized queries; the projected keys are not read.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/parallel.h"
#include "linnet/error.h"
#include "linnet/kernels/lsh_attention.h"
#include "linnet/runtime/mixer.h"

namespace linnet {
namespace {

class ReformerMixer : public RuntimeMixer {
 public:
  explicit ReformerMixer(const MixerMake& make)
      : RuntimeMixer(make.spec),
        simple_(make.spec.lsh_variant == LshVariant::kSimple),
        rounds_(static_cast<size_t>(make.spec.lsh_rounds)),
        options_{.buckets = static_cast<size_t>(make.spec.lsh_buckets),
                 .chunk = static_cast<size_t>(make.spec.lsh_chunk),
                 .causal = make.causal},
        stretch_(make.spec.scale > 0
                     ? make.spec.scale * std::sqrt(static_cast<float>(make.spec.query_dim))
                     : 1),
        planes_(LshPlanes(make.spec, make.spec.query_dim)) {
    if (make.cross) throw InputError("attention 'reformer' does not support cross attention");
  }

  size_t ScratchFloats(size_t rows, size_t heads, size_t) const override {
    const kernels::LshAttentionShape shape = Shape(rows, heads);
    return RoundUp(rows * heads * dim_, kAlign) +
           RoundUp(kernels::LshAttentionPlaces(shape), kAlign) +
           RoundUp(kernels::LshAttentionSums(shape), kAlign) +
           kernels::LshAttentionScratch(shape, options_);
  }

  void Run(const MixerCall& call) const override {
    for (size_t i = 0; i < call.block.sequences; ++i) {
      const size_t row = call.block.Row(i), length = call.block.Length(i), count = call.count();
      const kernels::Strided<const float> q = Queries(call, row, length),
                                          v = Rows(call.in + 2 * dim_, row, call.in_width,
                                                   HeadWidth());
      if (simple_) {
        for (size_t h = 0; h < count; ++h) Simple(q, v, length, h, Out(call, row));
        continue;
      }
      const kernels::LshAttentionShape shape = Shape(length, count);
      float* places = call.scratch + RoundUp(length * count * dim_, kAlign);
      float* sums = places + RoundUp(kernels::LshAttentionPlaces(shape), kAlign);
      kernels::LshAttentionForward(shape, options_,
                                   {.q = q,
                                    .v = v,
                                    .out = Out(call, row),
                                    .planes = planes_.data(),
                                    .places = reinterpret_cast<int32_t*>(places),
                                    .sums = sums},
                                   {sums + RoundUp(kernels::LshAttentionSums(shape), kAlign), 1},
                                   SerialFor);
    }
  }

 private:
  kernels::LshAttentionShape Shape(size_t length, size_t heads) const {
    return {1, length, heads, dim_, value_dim_, rounds_};
  }

  // The kernel scales scores by 1 / sqrt(D). If the spec has another scale, q is multiplied by
  // scale sqrt(D). This changes neither keys nor buckets, which do not depend on the norm of q.
  kernels::Strided<const float> Queries(const MixerCall& call, size_t row, size_t length) const {
    const kernels::Strided<const float> q = Rows(call.in, row, call.in_width, HeadWidth());
    if (stretch_ == 1) return q;
    for (size_t i = 0; i < length * call.count(); ++i) {
      const float* from = q.At(0, i / call.count(), i % call.count());
      for (size_t d = 0; d < dim_; ++d) call.scratch[i * dim_ + d] = from[d] * stretch_;
    }
    return kernels::RowMajor<const float>(call.scratch, length, call.count(), dim_);
  }

  // All positions, sorted by their bucket in `round`, then by position.
  std::vector<size_t> Order(kernels::Strided<const float> q, size_t length, size_t head,
                            size_t round) const {
    const size_t half = options_.buckets / 2;
    const float* planes = planes_.data() + round * dim_ * half;
    std::vector<size_t> bucket(length), order(length);
    std::vector<float> projected(2 * half);
    for (size_t t = 0; t < length && half > 0; ++t) {
      std::fill(projected.begin(), projected.end(), 0.0f);
      for (size_t d = 0; d < dim_; ++d) {
        const float x = q.At(0, t, head)[d];
        for (size_t c = 0; c < half; ++c) projected[c] += x * planes[d * half + c];
      }
      for (size_t c = 0; c < half; ++c) projected[half + c] = -projected[c];
      bucket[t] = static_cast<size_t>(std::max_element(projected.begin(), projected.end()) -
                                      projected.begin());
    }
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return bucket[a] < bucket[b]; });
    return order;
  }

  // fast-transformers' variant (ops::SimpleLshAttention): a position attends to its own chunk of
  // the sorted order and the previous one, and the results of the rounds are averaged.
  void Simple(kernels::Strided<const float> q, kernels::Strided<const float> v, size_t length,
              size_t head, kernels::Strided<float> out) const {
    const size_t chunk = std::min(options_.chunk, length);
    const float scale = 1 / std::sqrt(static_cast<float>(dim_));
    std::vector<float> keys(length * dim_), scores(2 * chunk);
    for (size_t t = 0; t < length; ++t) {
      const float* from = q.At(0, t, head);
      float squares = 0;
      for (size_t d = 0; d < dim_; ++d) squares += from[d] * from[d];
      const float norm = std::max(std::sqrt(squares), 1e-12f);
      for (size_t d = 0; d < dim_; ++d) keys[t * dim_ + d] = from[d] / norm;
      std::fill_n(out.At(0, t, head), value_dim_, 0.0f);
    }
    for (size_t r = 0; r < rounds_; ++r) {
      const std::vector<size_t> order = Order(q, length, head, r);
      for (size_t place = 0; place < length; ++place) {  // index in the sorted order
        const size_t own = place / chunk * chunk, begin = own >= chunk ? own - chunk : 0;
        const size_t end = std::min(own + chunk, length), t = order[place];
        float largest = -INFINITY, total = 0;
        for (size_t j = begin; j < end; ++j) {
          float score = -INFINITY;
          if (!options_.causal || order[j] <= t) {
            score = 0;
            for (size_t d = 0; d < dim_; ++d)
              score += q.At(0, t, head)[d] * keys[order[j] * dim_ + d];
            score *= scale;
          }
          scores[j - begin] = score;
          largest = std::max(largest, score);
        }
        for (size_t j = begin; j < end; ++j) {
          scores[j - begin] = std::exp(scores[j - begin] - largest);
          total += scores[j - begin];
        }
        for (size_t j = begin; j < end; ++j) {
          const float weight = scores[j - begin] / (total * static_cast<float>(rounds_));
          for (size_t m = 0; m < value_dim_; ++m) {
            out.At(0, t, head)[m] += weight * v.At(0, order[j], head)[m];
          }
        }
      }
    }
  }

  const bool simple_;
  const size_t rounds_;
  const kernels::LshAttentionOptions options_;
  const float stretch_;  // factor of the queries; 1 if the spec has the kernel's scale
  const std::vector<float> planes_;
};

}  // namespace

RuntimeMixerRow RuntimeReformer() {
  return {"reformer", [](const MixerMake& make) -> std::unique_ptr<RuntimeMixer> {
            return std::make_unique<ReformerMixer>(make);
          }};
}

}  // namespace linnet
