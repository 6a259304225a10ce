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

// Columns that a mixer reads: a product of its layer's input, with the tensors name.weight and
// name.bias, or those of an earlier layer.
struct ProjectionInfo {
  std::string name;
  int width = 1;  // columns per head; if shared, of all heads together
  bool bias = true;
  bool shared = false;  // every head reads the same columns
  int readers = 1;      // so many heads in turn read the same columns; divides their number
  // The tensor's rows are so many blocks, each with an equal part of every head's columns.
  int blocks = 1;
  // The tensor [d_model] of a token shift: the product is of x + (previous x - x) * shift instead
  // of the input x, where previous x is the input one position earlier, or zeros. "": of x.
  std::string shift = {};
  bool carries = false;  // later layers' mixers may read these columns too
  // No product, but the columns of the last earlier projection that carries. Comes last.
  bool carried = false;

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
