// Which keys a query may see.
//
//   Mask{.causal = true}                          // position i sees 0 .. i
//   Mask{.lengths = torch::tensor({37, 21})}      // sequence n has lengths[n] keys, the rest is
//   padding
#ifndef LINNET_NN_MASK_H_
#define LINNET_NN_MASK_H_

#include <torch/types.h>

namespace linnet::nn {

struct Mask {
  bool causal = false;
  torch::Tensor lengths = {};  // undefined: all keys; else int64 [N]
};

}  // namespace linnet::nn

#endif  // LINNET_NN_MASK_H_
