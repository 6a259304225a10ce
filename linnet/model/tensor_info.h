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

// An input projection of a mixer. Its columns are x W^T + b, with x the layer's input, W the tensor
// name.weight and b name.bias; or, if `carried`, columns that an earlier layer computed.
struct ProjectionInfo {
  std::string name;
  int width = 1;  // columns per head; if shared, of all heads together
  bool bias = true;
  bool shared = false;  // every head reads the same columns
  int readers = 1;      // so many consecutive heads share columns; divides the number of heads
  // The weight's rows (one per column) form this many blocks. Each block has an equal part of every
  // head's columns.
  int blocks = 1;
  // The tensor [d_model] of a token shift: the projection reads x + (previous x - x) * shift, where
  // previous x is the input one position earlier (zeros at the first). "": it reads x.
  std::string shift = {};
  bool carries = false;  // later layers' mixers may read these columns too
  // The columns are not computed here. They are those of the projection with `carries` in the
  // latest earlier layer that has one. Must be the mixer's last projection.
  bool carried = false;

  int Columns(int heads) const { return shared ? width : heads / readers * width; }
  // The row of the weight tensor that computes a head's column, in a layer of `heads` heads.
  int RowOf(int head, int column, int heads) const {
    if (shared) return column;
    const int part = width / blocks;
    return (column / part * (heads / readers) + head / readers) * part + column % part;
  }
};

}  // namespace linnet

#endif  // LINNET_MODEL_TENSOR_INFO_H_
