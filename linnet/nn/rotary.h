// Rotary position embeddings, RoPE (private to linnet/nn).
//
//   Rotate(/*first=*/state.length, /*base=*/10000, q, k);
#ifndef LINNET_NN_ROTARY_H_
#define LINNET_NN_ROTARY_H_

#include <torch/types.h>

namespace linnet::nn {

// Rotates channels i and i + D/2 of q [N, L, H, D] and k [N, L, G, D] by the angle
// position * RotaryFrequency(i, D, base), at positions first .. first + L - 1. Types narrower than
// fp32 are rotated in fp32.
void Rotate(int64_t first, double base, torch::Tensor& q, torch::Tensor& k);

}  // namespace linnet::nn

#endif  // LINNET_NN_ROTARY_H_
