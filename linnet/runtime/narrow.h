// Smaller files of a model: its matrices in bf16 or int8 (model/precision.h).
//
//   const Checkpoint checkpoint = Checkpoint::Open("models/digits.safetensors");
//   WriteNarrowed(checkpoint, Precision::kInt8, "digits-int8.safetensors");
#ifndef LINNET_RUNTIME_NARROW_H_
#define LINNET_RUNTIME_NARROW_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "linnet/model/checkpoint.h"
#include "linnet/model/precision.h"

namespace linnet {

// A matrix [out, in] in int8: a weight is value * scale of its output * factor of its input, where
// there are any.
struct Int8Matrix {
  std::vector<int8_t> values;
  std::vector<float> scales;

  Int8Matrix(std::span<const float> weight, size_t out, std::span<const float> factor);
};

// The factors of the inputs of an int8 matrix: powers of two that bring what a layer norm gives, about
// 3 |weight| + |bias| of each channel, to about one size. Empty where the matrix has none.
std::vector<float> InputFactors(const Checkpoint& checkpoint, const std::string& tensor_name);

// Writes the model, what its file says of its training too, with its matrices in that precision. An
// engine that runs it in that precision gives, embeddings apart, which are rounded to bf16, bit for bit
// what it gives for the wider file. Throws InputError on weights that are not finite, and what
// writing throws.
void WriteNarrowed(const Checkpoint& checkpoint, Precision precision, const std::string& path);

}  // namespace linnet

#endif  // LINNET_RUNTIME_NARROW_H_
