// Writes smaller model files, with the matrices in bf16 or int8 (model/precision.h).
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

// An int8 matrix [out, in]: weight = value * scale of its output * factor of its input (1 if
// `factor` is empty).
struct Int8Matrix {
  std::vector<int8_t> values;
  std::vector<float> scales;

  Int8Matrix(std::span<const float> weight, size_t out, std::span<const float> factor);
};

// Factors for the inputs of an int8 matrix that reads a norm's output: powers of two that bring the
// channels to a similar scale. A channel's scale is estimated as 3 |weight| + |bias|, from the
// norm's parameters. Empty unless the matrix is linear1 or the gate of a feed-forward block.
std::vector<float> InputFactors(const Checkpoint& checkpoint, const std::string& tensor_name);

// Writes the model with its matrices in `precision` and with all metadata of its file. Omits the
// position table if it equals the computed one. The new file gives the same outputs, bit for bit,
// as the old file opened in `precision`, except that the new file's embeddings are rounded to bf16.
// Throws InputError if a weight is not finite or its magnitude exceeds 1e15; also throws the errors
// of SafetensorsWriter::Write().
void WriteNarrowed(const Checkpoint& checkpoint, Precision precision, const std::string& path);

}  // namespace linnet

#endif  // LINNET_RUNTIME_NARROW_H_
