// Interface of mixers whose forward() has GPU kernels that read a narrow type (bf16) and accumulate
// in fp32. In front of such a mixer, a layer with precision kBf16 computes queries, keys and values
// in bf16 (private to linnet/nn).
#ifndef LINNET_NN_NARROW_MIXER_H_
#define LINNET_NN_NARROW_MIXER_H_

#include "linnet/nn/mask.h"

namespace linnet::nn {

class NarrowMixer {
 public:
  // Whether the mixer has such kernels for this value_dim and mask.
  virtual bool TakesBf16OnGpu(int64_t value_dim, const Mask& mask) const = 0;

 protected:
  ~NarrowMixer() = default;
};

}  // namespace linnet::nn

#endif  // LINNET_NN_NARROW_MIXER_H_
