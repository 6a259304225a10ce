// A mixer whose forward has kernels for bf16 on a GPU that add in fp32; its layer then computes
// queries, keys and values in bf16 (private to linnet/nn).
#ifndef LINNET_NN_NARROW_MIXER_H_
#define LINNET_NN_NARROW_MIXER_H_

#include "linnet/nn/mask.h"

namespace linnet::nn {

class NarrowMixer {
 public:
  // Whether it has them for values of this width and with this mask.
  virtual bool TakesBf16OnGpu(int64_t value_dim, const Mask& mask) const = 0;

 protected:
  ~NarrowMixer() = default;
};

}  // namespace linnet::nn

#endif  // LINNET_NN_NARROW_MIXER_H_
