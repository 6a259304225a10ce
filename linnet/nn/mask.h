// Attention masks: which keys a query may attend to. All mixers share these semantics.
//
//   Mask{.causal = true}                        // position i attends to 0 .. i
//   Mask{.lengths = torch::tensor({37, 21})}    // sequence n has lengths[n] keys, then padding
//
// A key masked out for a query contributes neither to the weighted sum of values nor to the sum of
// weights that divides it. The output of a query without keys is 0. Padding behind `lengths` and
// `query_lengths` may hold anything, even NaN; positions masked only by `causal` or `allowed` must
// be finite.
#ifndef LINNET_NN_MASK_H_
#define LINNET_NN_MASK_H_

#include <torch/types.h>

#include <string>

namespace linnet::nn {

struct Mask {
  bool causal = false;  // self attention only: S = L
  // Number of keys of each sequence: int64 [N], in 0 .. S; undefined: S.
  torch::Tensor lengths = {};
  // Number of queries of each sequence: int64 [N], in 0 .. L; undefined: L. Outputs at later
  // positions are 0. For 'reformer', whose keys are its queries, later positions are not keys.
  torch::Tensor query_lengths = {};
  // True where a query may attend to a key: bool, broadcastable to [N, H, L, S]. Only for mixers
  // that compare all pairs ('full' and 'kernel').
  torch::Tensor allowed = {};
};

// Checks a mixer's arguments: q [N, L, H, D], k [N, S, G, D] and v [N, S, G, M]. All sizes but N
// must be at least 1. `readers` consecutive query heads share one key-value head, so H must be
// readers * G. Throws InputError, naming the kind, if shapes, types or devices do not fit, if D
// is not query_dim (0: any D fits), if a causal mask has S != L, if lengths are out of range, or if
// mask.allowed is defined but the mixer does not compare all pairs (`quadratic` is false). The
// values of lengths on a GPU are not checked; they act as if clamped to their range.
void CheckAttention(const char* kind, const torch::Tensor& q, const torch::Tensor& k,
                    const torch::Tensor& v, const Mask& mask, bool quadratic, int64_t query_dim = 0,
                    int64_t readers = 1);

// Throws InputError, with a message that begins with `name`, unless `lengths` is undefined or int64
// [N], in 0 .. S, on the device of x [N, S, ...]. Values on a GPU are not checked, because that
// would wait for the GPU.
void CheckLengths(const std::string& name, const torch::Tensor& lengths, const torch::Tensor& x);

// Queries, keys and values with zeros in place of padding.
struct Counted {
  torch::Tensor q, k, v;
};
// Zeros keys and values behind mask.lengths, and queries behind mask.query_lengths. Padding gets no
// gradient. Call CheckAttention() first.
Counted DropPadding(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                    const Mask& mask);

// x [N, L, H, dim] with zeros at positions lengths[n] and later; x if `lengths` is undefined.
torch::Tensor DropBehind(const torch::Tensor& x, const torch::Tensor& lengths);

// True where a key is masked out for a query: bool, broadcastable to [N, H, L, S]; undefined if the
// mask has no restrictions.
torch::Tensor Hidden(const Mask& mask, const torch::Tensor& q, const torch::Tensor& k);

// True at positions below lengths[n]: bool [N, length].
torch::Tensor Below(const torch::Tensor& lengths, int64_t length);

// out [N, L, H, M] with zeros behind mask.query_lengths.
torch::Tensor DropQueries(const torch::Tensor& out, const Mask& mask);

// numerator [..., M] / denominator [..., 1]. Where the denominator is 0, the result is 0 and passes
// no gradient back.
torch::Tensor DivideOrZero(const torch::Tensor& numerator, const torch::Tensor& denominator);

}  // namespace linnet::nn

#endif  // LINNET_NN_MASK_H_
