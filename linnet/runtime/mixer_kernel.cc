// Attention with a selectable similarity (equation 3 of Katharopoulos et al. 2020): plain loops
// over all visible keys.
#include <cmath>

#include "linnet/runtime/mixer_cache.h"

namespace linnet {
namespace {

class KernelMixer : public CacheMixer {
 public:
  explicit KernelMixer(const MixerMake& make)
      : CacheMixer(make), similarity_(make.spec.similarity), eps_(make.spec.eps) {}

 protected:
  size_t AttendScratch(size_t, size_t keys) const override { return keys; }

  void Attend(const Shape& shape, In q, In k, In v, kernels::Strided<float> out,
              float* scratch) const override {
    for (size_t h = 0; h < shape.heads; ++h) {
      for (size_t i = 0; i < shape.queries; ++i) {
        const size_t seen = shape.causal ? std::min(shape.keys, shape.offset + i + 1) : shape.keys;
        Row(q.At(0, i, h), seen, h, k, v, out.At(0, i, h), scratch);
      }
    }
  }

 private:
  // Attends from one query to keys [0, seen). `similarities` [seen] is working memory.
  void Row(const float* q, size_t seen, size_t head, In k, In v, float* out,
           float* similarities) const {
    const float root = std::sqrt(static_cast<float>(dim_));
    float largest = -INFINITY;
    for (size_t j = 0; j < seen; ++j) {
      const float* key = k.At(0, j, head);
      float sum = 0;
      for (size_t d = 0; d < dim_; ++d) {
        const float difference = q[d] - key[d];
        sum += similarity_ == Similarity::kRbf ? difference * difference : q[d] * key[d];
      }
      similarities[j] = sum / root;
      largest = std::max(largest, similarities[j]);
    }
    float total = 0;
    std::fill_n(out, value_dim_, 0.0f);
    for (size_t j = 0; j < seen; ++j) {
      const float similarity = Of(similarities[j], largest);
      const float* value = v.At(0, j, head);
      total += similarity;
      for (size_t m = 0; m < value_dim_; ++m) out[m] += similarity * value[m];
    }
    // If the denominator is 0, the output is 0, as in the other kinds.
    const float denominator = total + eps_;
    for (size_t m = 0; m < value_dim_; ++m) out[m] = denominator > 0 ? out[m] / denominator : 0;
  }

  // The similarity of q and k, given x = q . k / sqrt(D), or |q - k|^2 / sqrt(D) for rbf. For
  // softmax it is exp(x - largest), to avoid overflow; `largest` is the largest x of the query's
  // keys.
  float Of(float x, float largest) const {
    switch (similarity_) {
      case Similarity::kSoftmax:
        return std::exp(x - largest);
      case Similarity::kPolynomial2:
        return (x + 1) * (x + 1);
      case Similarity::kRbf:
        return std::exp(x / -2);
    }
    return 0;
  }

  const Similarity similarity_;
  const float eps_;
};

}  // namespace

RuntimeMixerRow RuntimeKernel() {
  return {"kernel", [](const MixerMake& make) -> std::unique_ptr<RuntimeMixer> {
            return std::make_unique<KernelMixer>(make);
          }};
}

}  // namespace linnet
