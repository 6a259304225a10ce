// Which keys a query may see, with one meaning for every attention kind.
//
//   Mask{.causal = true}                            // position i sees 0 .. i
//   Mask{.lengths = torch::tensor({37, 21})}        // sequence n has lengths[n] keys; padding follows
//
// A key that is hidden from a query counts for nothing: neither in the sum of values nor in what it
// is divided by. A query that sees no key gets zeros.
#ifndef LINNET_NN_MASK_H_
#define LINNET_NN_MASK_H_

#include <torch/types.h>

namespace linnet::nn {

struct Mask {
  bool causal = false;               // queries and keys are the same positions
  torch::Tensor lengths = {};        // keys a sequence has: int64 [N], in 0 .. S; undefined: S
  torch::Tensor query_lengths = {};  // queries that count: the rest get zeros; int64 [N]
  // True where a query may see a key: bool, broadcastable to [N, H, L, S]. Quadratic kinds only.
  torch::Tensor allowed = {};
};

// Throws InputError, naming the kind, on shapes that do not fit q [N, L, H, D], k [N, S, H, D] and
// v [N, S, H, M], on a causal mask where S is not L, and on `allowed` unless the kind is quadratic.
void CheckAttention(const char* kind, const torch::Tensor& q, const torch::Tensor& k,
                    const torch::Tensor& v, const Mask& mask, bool quadratic);

// True where a key is hidden: bool, broadcastable to [N, H, L, S]; undefined where none is.
torch::Tensor Hidden(const Mask& mask, const torch::Tensor& q, const torch::Tensor& k);

// True at positions below lengths[n]: bool [N, length].
torch::Tensor Below(const torch::Tensor& lengths, int64_t length);

// out [N, L, H, M] with zeros at the queries that do not count.
torch::Tensor DropQueries(const torch::Tensor& out, const Mask& mask);

}  // namespace linnet::nn

#endif  // LINNET_NN_MASK_H_
