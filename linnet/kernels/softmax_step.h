// Softmax attention, one position of each sequence at a time, over a cache of its keys and values.
// Reading the cache limits the speed of a generation step. A cache with room for every position
// gives attention over all positions. A smaller cache is a ring buffer, and attention is over a
// window of the latest positions.
//
//   SoftmaxStepShape shape{.heads = 8, .dim = 32, .value_dim = 32, .capacity = 783};
//   std::vector<float> cache(shape.heads * shape.HeadFloats()), scratch(shape.ScratchFloats());
//   const size_t position = 0;
//   SoftmaxStep(shape, 1, 1 / std::sqrt(32.0f),
//               {q, k, v, out, cache.data(), 0, &position, nullptr, scratch.data()});
//
// For each head, k_p and v_p are first stored in the cache, at index p modulo the capacity C. Then:
//
//   out_p = sum_{p - C < i <= p} softmax_i(scale q_p . k_i) v_i     [M]
//
// This is equation 2 of Katharopoulos et al. (2020), restricted to the window.
//
// Results do not depend on the other sequences of a call. For many positions at once over the same
// cache see softmax_attention.h. The reference is softmax_attention_ref.h.
#ifndef LINNET_KERNELS_SOFTMAX_STEP_H_
#define LINNET_KERNELS_SOFTMAX_STEP_H_

#include <cstddef>

#include "linnet/kernels/strided.h"

namespace linnet::kernels {

struct SoftmaxStepShape {
  size_t heads = 0, dim = 0, value_dim = 0;  // H, D, M
  size_t capacity = 0;                       // positions
  size_t readers = 1;  // number of consecutive heads that share keys and values; divides `heads`

  // Floats of one head's cache: keys [capacity, D], then values [capacity, M], rounded up to a
  // multiple of 16.
  size_t HeadFloats() const { return (capacity * (dim + value_dim) + 15) / 16 * 16; }
  size_t ScratchFloats() const { return capacity + 16; }
};

struct SoftmaxStepArgs {
  Strided<const float> q;     // [N, 1, H, D]
  Strided<const float> k, v;  // [N, 1, H / readers, D] and [N, 1, H / readers, M]
  Strided<float> out;         // [N, 1, H, M]
  // The cache of sequence 0: HeadFloats() for each head of k in order. cache_stride: floats from
  // one sequence's cache to the next.
  float* cache = nullptr;
  ptrdiff_t cache_stride = 0;
  const size_t* positions = nullptr;  // per sequence: number of earlier positions
  const size_t* sequences = nullptr;  // optional, [N]: sequences to step; default 0, 1, 2, ...
  float* scratch = nullptr;           // ScratchFloats()
};

// Steps `batch` sequences. out must not alias the other arrays. D, M >= 1.
void SoftmaxStep(const SoftmaxStepShape& shape, size_t batch, float scale,
                 const SoftmaxStepArgs& args);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_SOFTMAX_STEP_H_
