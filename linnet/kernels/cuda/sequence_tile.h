// The rows of a sequence in a batch, which has equal lengths or is packed.
#ifndef LINNET_KERNELS_CUDA_SEQUENCE_TILE_H_
#define LINNET_KERNELS_CUDA_SEQUENCE_TILE_H_

#include <cstddef>
#include <cstdint>

#include "linnet/kernels/cuda/tile.h"

namespace linnet::kernels::cuda {

struct SequenceRows {
  size_t first;     // the row of position 0 in packed tensors; 0 if there are no offsets
  unsigned length;  // positions
  unsigned valid;   // positions before lengths[n]
};

// Of sequence n. offsets, lengths: may be null, as in kernels/scan.h; without offsets, a sequence
// has `length` positions.
LINNET_TILE SequenceRows RowsOf(unsigned n, const int64_t* offsets, const int64_t* lengths,
                                unsigned length) {
  SequenceRows rows{0, length, length};
  if (offsets != nullptr) {
    rows.first = static_cast<size_t>(offsets[n]);
    rows.length = rows.valid = static_cast<unsigned>(offsets[n + 1] - offsets[n]);
  }
  if (lengths != nullptr && lengths[n] < static_cast<int64_t>(rows.length)) {
    rows.valid = lengths[n] > 0 ? static_cast<unsigned>(lengths[n]) : 0;
  }
  return rows;
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_SEQUENCE_TILE_H_
