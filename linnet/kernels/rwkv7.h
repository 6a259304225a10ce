// The elementwise parts of RWKV-7's time mixing (model/rwkv7.h) at one position, for all heads of a
// group: what the scan reads, and what is done with its outputs. Arrays may have any alignment.
//
//   Rwkv7Keys({.heads = 12, .dim = 64, .key = key, .key_stride = 64, .removal = k_k,
//              .key_rate = k_a, .least = 1e-12f, .k = k, .erase = erase, .write = rates});
#ifndef LINNET_KERNELS_RWKV7_H_
#define LINNET_KERNELS_RWKV7_H_

#include <cstddef>

namespace linnet::kernels {

// For each head, with the projected keys `key` and the rates a in `write`:
//   u = key * removal / max(|key * removal|, least)
//   k = key (1 + (a - 1) key_rate), erase = -u, write = u a
// Arrays are dense [heads, dim], but for `key`, whose heads are key_stride floats apart.
struct Rwkv7KeysArgs {
  size_t heads = 0, dim = 0;
  const float* key = nullptr;
  size_t key_stride = 0;
  const float* removal = nullptr;
  const float* key_rate = nullptr;
  float least = 0;
  float* k = nullptr;
  float* erase = nullptr;
  float* write = nullptr;  // read before it is written
};
void Rwkv7Keys(const Rwkv7KeysArgs& args);

// For each head: out = (Norm(out) weight + bias + (r . (k * bonus)) v) gate, where Norm() subtracts
// the mean and divides by sqrt(variance + eps). Arrays are dense: r (but for its stride), k and
// bonus [heads, dim], all others [heads, value_dim].
struct Rwkv7OutputArgs {
  size_t heads = 0, dim = 0, value_dim = 0;
  const float* r = nullptr;
  size_t r_stride = 0;  // floats from one head to the next
  const float* k = nullptr;
  const float* bonus = nullptr;
  const float* v = nullptr;
  const float* gate = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 0;
  float* out = nullptr;  // read before it is written
};
void Rwkv7Output(const Rwkv7OutputArgs& args);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_RWKV7_H_
