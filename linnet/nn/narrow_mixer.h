// Interface of mixers whose forward has GPU kernels that read bf16 and accumulate in fp32. With
// such a mixer, a layer in bf16 computes queries, keys and values in bf16 (private to linnet/nn).
#ifndef LINNET_NN_NARROW_MIXER_H_
#define LINNET_NN_NARROW_MIXER_H_

#include "linnet/nn/mask.h"

namespace linnet::nn {

class NarrowMixer {
 public:
  // Whether there are such kernels for this value_dim and mask.
  virtual bool TakesBf16OnGpu(int64_t value_dim, const Mask& mask) const = 0;

 protected:
  ~NarrowMixer() = default;
};

}  // namespace linnet::nn

#endif  // LINNET_NN_NARROW_MIXER_H_
