#include "linnet/kernels/head_norm.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/head_norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/head_norm-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(SiluL2NormRange);
HWY_EXPORT(SiluL2NormBackwardRange);
HWY_EXPORT(L2NormBody);
HWY_EXPORT(GatedRmsNormRange);
HWY_EXPORT(GatedRmsNormBackwardRange);

namespace {

// The weight's gradient is a sum of one sum for each piece of this many rows, so that it does not
// depend on the number of threads.
constexpr size_t kPiece = 256;

size_t Pieces(size_t rows) { return (rows + kPiece - 1) / kPiece; }

}  // namespace

void SiluL2Norm(const SiluL2NormShape& shape, const float* x, float* y, ParallelFor parallel_for) {
  parallel_for(shape.rows, [&](size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(SiluL2NormRange)(shape, x, y, begin, end);
  });
}

void SiluL2NormBackward(const SiluL2NormShape& shape, const float* x, const float* grad_y,
                        float* grad_x, ParallelFor parallel_for) {
  parallel_for(shape.rows, [&](size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(SiluL2NormBackwardRange)(shape, x, grad_y, grad_x, begin, end);
  });
}

void L2Norm(size_t rows, size_t width, float eps, float* x) {
  HWY_DYNAMIC_DISPATCH(L2NormBody)(rows, width, eps, x);
}

void GatedRmsNorm(const GatedRmsNormShape& shape, const GatedRmsNormArgs& args, float* y,
                  ParallelFor parallel_for) {
  parallel_for(shape.rows, [&](size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(GatedRmsNormRange)(shape, args, y, begin, end);
  });
}

size_t GatedRmsNormScratch(const GatedRmsNormShape& shape) {
  return Pieces(shape.rows) * shape.width;
}

void GatedRmsNormBackward(const GatedRmsNormShape& shape, const GatedRmsNormArgs& args,
                          const float* grad_y, const GatedRmsNormGradients& gradients,
                          float* scratch, ParallelFor parallel_for) {
  const size_t pieces = Pieces(shape.rows);
  parallel_for(pieces, [&](size_t begin, size_t end) {
    for (size_t p = begin; p < end; ++p) {
      HWY_DYNAMIC_DISPATCH(GatedRmsNormBackwardRange)
      (shape, args, grad_y, gradients, scratch + p * shape.width, p * kPiece,
       std::min(shape.rows, (p + 1) * kPiece));
    }
  });
  std::fill_n(gradients.weight, shape.width, 0.0f);
  for (size_t p = 0; p < pieces; ++p) {
    for (size_t i = 0; i < shape.width; ++i) gradients.weight[i] += scratch[p * shape.width + i];
  }
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
