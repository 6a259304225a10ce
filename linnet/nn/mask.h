// Which keys a query may see, with one meaning for every attention kind.
//
//   Mask{.causal = true}                            // position i sees 0 .. i
//   Mask{.lengths = torch::tensor({37, 21})}        // sequence n has lengths[n] keys; padding follows
//
// A key that is hidden from a query counts for nothing: neither in the sum of values nor in what it
// is divided by. A query that sees no key gets zeros. What lies behind `lengths` and `query_lengths`
// may hold anything, NaN too; what only `causal` or `allowed` hides must be numbers.
#ifndef LINNET_NN_MASK_H_
#define LINNET_NN_MASK_H_

#include <torch/types.h>

#include <string>

namespace linnet::nn {

struct Mask {
  bool causal = false;               // queries and keys are the same positions
  torch::Tensor lengths = {};        // keys a sequence has: int64 [N], in 0 .. S; undefined: S
  torch::Tensor query_lengths = {};  // queries that count, in 0 .. L: the rest get zeros; int64 [N]
  // True where a query may see a key: bool, broadcastable to [N, H, L, S]. Quadratic kinds only.
  torch::Tensor allowed = {};
};

// Throws InputError, naming the kind, on shapes, types and devices that do not fit q [N, L, H, D],
// k [N, S, H, D] and v [N, S, H, M] (all but N at least 1), on a causal mask where S is not L, on
// lengths out of range, and on `allowed` unless the kind is quadratic; and where D is not the
// query_dim that the kind was made for (0: any). Lengths that are not on the CPU are not looked into:
// what is over S means S, what is below 0 means 0.
void CheckAttention(const char* kind, const torch::Tensor& q, const torch::Tensor& k,
                    const torch::Tensor& v, const Mask& mask, bool quadratic,
                    int64_t query_dim = 0);

// Throws InputError, beginning with `name`, unless lengths is int64 [N], in 0 .. S, for x [N, S, ...].
void CheckLengths(const std::string& name, const torch::Tensor& lengths, const torch::Tensor& x);

// What forward works with, once checked: zeros in place of keys and values behind mask.lengths, and
// of queries behind mask.query_lengths. They get no gradient.
struct Counted {
  torch::Tensor q, k, v;
};
Counted DropPadding(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                    const Mask& mask);

// x [N, L, H, dim] with zeros at the positions lengths[n] and behind; x where there are no lengths.
torch::Tensor DropBehind(const torch::Tensor& x, const torch::Tensor& lengths);

// True where a key is hidden: bool, broadcastable to [N, H, L, S]; undefined where none is.
torch::Tensor Hidden(const Mask& mask, const torch::Tensor& q, const torch::Tensor& k);

// True at positions below lengths[n]: bool [N, length].
torch::Tensor Below(const torch::Tensor& lengths, int64_t length);

// out [N, L, H, M] with zeros at the queries that do not count.
torch::Tensor DropQueries(const torch::Tensor& out, const Mask& mask);

// numerator / denominator [..., 1]; 0 where that is 0, which hands no gradient on.
torch::Tensor DivideOrZero(const torch::Tensor& numerator, const torch::Tensor& denominator);

}  // namespace linnet::nn

#endif  // LINNET_NN_MASK_H_
