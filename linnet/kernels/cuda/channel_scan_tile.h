// The tile programs (tile.h) of the scan by channel: h_t = e^g_t h_{t-1} + x_t and its gradients.
// A thread computes a channel of a sequence, kPositions positions at a time, whose inputs it loads
// before it computes. Grid: x = sequence, y = groups of threads() channels.
#ifndef LINNET_KERNELS_CUDA_CHANNEL_SCAN_TILE_H_
#define LINNET_KERNELS_CUDA_CHANNEL_SCAN_TILE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "linnet/kernels/cuda/sequence_tile.h"
#include "linnet/kernels/cuda/tile.h"
#include "linnet/kernels/scan.h"

namespace linnet::kernels::cuda {

inline constexpr unsigned kChannelThreads = 64;

template <class Tile, class Args>
class ChannelScan {
 public:
  LINNET_TILE ChannelScan(Tile& tile, const ChannelScanShape& shape, const Args& args)
      : args_(args),
        channel_(tile.y() * tile.threads() + tile.thread()),
        n_(tile.x()),
        rows_(RowsOf(n_, args.offsets, args.lengths, static_cast<unsigned>(shape.length))),
        state_(static_cast<size_t>(n_) * shape.channels + channel_),
        inside_(channel_ < shape.channels) {}

  LINNET_TILE void Forward() const {
    if (!inside_) return;
    float h = args_.h ? args_.h[state_] : 0.0f;
    for (unsigned begin = 0; begin < rows_.length; begin += kPositions) {
      float x[kPositions], g[kPositions];
      LINNET_UNROLL
      for (unsigned i = 0; i < kPositions; ++i) {
        const bool valid = begin + i < rows_.valid;
        x[i] = valid ? At(args_.x, begin + i) : 0.0f;
        g[i] = valid ? At(args_.g, begin + i) : 0.0f;
      }
      LINNET_UNROLL
      for (unsigned i = 0; i < kPositions; ++i) {
        h = expf(g[i]) * h + x[i];
        if (begin + i < rows_.length) At(args_.out, begin + i) = h;
      }
    }
    if (args_.h) args_.h[state_] = h;
  }

  LINNET_TILE void Backward() const {
    if (!inside_) return;
    const float h0 = args_.h0 ? args_.h0[state_] : 0.0f;
    float grad = args_.grad_h ? args_.grad_h[state_] : 0.0f;
    const unsigned pieces = (rows_.length + kPositions - 1) / kPositions;
    for (unsigned piece = pieces; piece-- > 0;) {
      const unsigned begin = piece * kPositions;
      float g[kPositions], before[kPositions], grad_out[kPositions];
      LINNET_UNROLL
      for (unsigned i = 0; i < kPositions; ++i) {
        const unsigned t = begin + i;
        g[i] = t < rows_.valid ? At(args_.g, t) : 0.0f;
        before[i] = t > 0 && t < rows_.valid ? At(args_.out, t - 1) : h0;
        grad_out[i] = t < rows_.length ? At(args_.grad_out, t) : 0.0f;
      }
      LINNET_UNROLL
      for (unsigned j = 0; j < kPositions; ++j) {
        const unsigned i = kPositions - 1 - j, t = begin + i;
        const float decay = expf(g[i]);
        grad += grad_out[i];
        if (t < rows_.length) {
          At(args_.grad_x, t) = t < rows_.valid ? grad : 0.0f;
          At(args_.grad_g, t) = t < rows_.valid ? grad * decay * before[i] : 0.0f;
        }
        grad *= decay;
      }
    }
    if (args_.grad_h0) args_.grad_h0[state_] = grad;
  }

 private:
  static constexpr unsigned kPositions = 8;

  template <typename T>
  LINNET_TILE T& At(const Strided<T>& x, unsigned t) const {
    return x.data[static_cast<ptrdiff_t>(args_.offsets ? 0 : n_) * x.batch +
                  static_cast<ptrdiff_t>(rows_.first + t) * x.time + channel_];
  }

  const Args& args_;
  const unsigned channel_, n_;
  const SequenceRows rows_;
  const size_t state_;  // index in the states [N, C]
  const bool inside_;
};

template <class Tile>
LINNET_TILE void ChannelScanForwardTile(Tile& tile, const ChannelScanShape& shape,
                                        const ChannelScanArgs& args) {
  ChannelScan<Tile, ChannelScanArgs>(tile, shape, args).Forward();
}
template <class Tile>
LINNET_TILE void ChannelScanBackwardTile(Tile& tile, const ChannelScanShape& shape,
                                         const ChannelScanBackwardArgs& args) {
  ChannelScan<Tile, ChannelScanBackwardArgs>(tile, shape, args).Backward();
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_CHANNEL_SCAN_TILE_H_
