// Names and shapes of tensors and projections, as plain data.
#ifndef LINNET_MODEL_TENSOR_INFO_H_
#define LINNET_MODEL_TENSOR_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

namespace linnet {

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;
};

// A product of a layer's input that its mixer reads: tensors name.weight and name.bias.
struct ProjectionInfo {
  std::string name;
  int width = 1;  // columns per head; if shared, of all heads together
  bool bias = true;
  bool shared = false;  // every head reads the same columns
  int readers = 1;      // so many heads in turn read the same columns; divides their number
  // The tensor's rows are so many blocks, each with an equal part of every head's columns.
  int blocks = 1;

  int Columns(int heads) const { return shared ? width : heads / readers * width; }
  // The tensor's row, of those for so many heads, that computes a column of a head.
  int RowOf(int head, int column, int heads) const {
    if (shared) return column;
    const int part = width / blocks;
    return (column / part * (heads / readers) + head / readers) * part + column % part;
  }
};

}  // namespace linnet

#endif  // LINNET_MODEL_TENSOR_INFO_H_
