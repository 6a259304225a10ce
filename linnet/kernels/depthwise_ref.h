// Reference for DepthwiseForward() in plain double precision. Tests check the gradients of
// DepthwiseBackward() against finite differences of this reference.
#ifndef LINNET_KERNELS_DEPTHWISE_REF_H_
#define LINNET_KERNELS_DEPTHWISE_REF_H_

#include <vector>

#include "linnet/kernels/depthwise.h"

namespace linnet::kernels {

inline std::vector<double> DepthwiseRef(const DepthwiseShape& shape, const double* x,
                                        const double* weight, const double* bias,
                                        const int64_t* lengths) {
  std::vector<double> out(shape.batch * shape.length * shape.channels);
  for (size_t n = 0; n < shape.batch; ++n) {
    const size_t length = lengths == nullptr ? shape.length : static_cast<size_t>(lengths[n]);
    for (size_t t = 0; t < length; ++t) {
      for (size_t c = 0; c < shape.channels; ++c) {
        double sum = bias[c];
        for (size_t j = 0; j < shape.width; ++j) {
          if (t + j < shape.before || t + j - shape.before >= length) continue;
          sum += weight[j * shape.channels + c] *
                 x[(n * shape.length + t + j - shape.before) * shape.channels + c];
        }
        out[(n * shape.length + t) * shape.channels + c] = sum;
      }
    }
  }
  return out;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_DEPTHWISE_REF_H_
