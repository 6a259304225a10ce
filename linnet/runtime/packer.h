// Packs a checkpoint's matrices and vectors consecutively (private to linnet/runtime).
//
//   Packer measure(checkpoint, nullptr);       // without memory, only measures
//   PackAll(measure);
//   weights = AlignedBuffer<std::byte>(measure.used());
//   Packer packer(checkpoint, weights.data());
//   PackAll(packer);
//
// Each packing function returns the address of its result, or null without memory.
#ifndef LINNET_RUNTIME_PACKER_H_
#define LINNET_RUNTIME_PACKER_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "linnet/model/checkpoint.h"
#include "linnet/runtime/narrow.h"
#include "linnet/runtime/packed_model.h"

namespace linnet {

class Packer {
 public:
  Packer(const Checkpoint& checkpoint, std::byte* base) : checkpoint_(checkpoint), base_(base) {}

  size_t used() const { return used_; }

  // Packs input columns [begin, end) of name.weight [out, in], with name.bias if `with_bias` and
  // the file has one.
  PackedMatrix Columns(Precision precision, const std::string& name, size_t out, size_t in,
                       size_t begin, size_t end, bool with_bias);

  // Rows [begin, end) of name.weight.
  struct Rows {
    std::string name;
    size_t begin, end;
  };
  // Stacks rows of several matrices with `in` columns, and their biases.
  PackedMatrix Stacked(Precision precision, const std::vector<Rows>& parts, size_t in);

  // Packs both matrices of one direction of an LSTM layer, with their biases. `end` completes the
  // tensors' names: "0_reverse" for "lstm.weight_ih_l0_reverse".
  PackedLstm Lstm(Precision precision, const std::string& end, size_t in, size_t hidden);

  // Packs the input factors of an int8 matrix (narrow.h).
  const float* Factors(const std::string& name) {
    return Values(InputFactors(checkpoint_, name + ".weight"));
  }

  // Copies values, or those of a tensor.
  const float* Values(std::span<const float> from);
  const float* Tensor(const std::string& name) { return Values(checkpoint_.Tensor(name)); }

  kernels::LayerNormParameters Norm(const std::string& name) {
    const bool layer = checkpoint_.spec().stack.norm == NormKind::kLayer;
    return {Tensor(name + ".weight"), layer ? Tensor(name + ".bias") : nullptr};
  }

 private:
  void Pack(Precision precision, const float* weight, size_t out, size_t in, size_t begin,
            size_t end, std::span<const float> factor, const float* bias, std::byte* to);
  // Packs columns [begin, end) of a rounded matrix. The scales belong to whole rows of the matrix.
  static void PackRounded(const Int8Matrix& matrix, size_t in, size_t begin, size_t end,
                          const float* bias, std::byte* to);
  // Returns the next `bytes` bytes of the memory; null without memory.
  std::byte* Take(size_t bytes);

  const Checkpoint& checkpoint_;
  std::byte* base_;
  size_t used_ = 0;
  // The latest int8 matrix of Columns(), and its name.
  std::string rounded_name_;
  std::optional<Int8Matrix> rounded_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_PACKER_H_
