// A stream of its own, and graphs: kernels that are captured once and started many times at the
// cost of one.
//
//   OwnStream stream;
//   Graph graph;
//   graph.Capture(stream.get(), [&] { StartEmbed<float>(embed, stream.get()); ... });
//   for (...) graph.Run(stream.get());
#ifndef LINNET_KERNELS_CUDA_GRAPH_H_
#define LINNET_KERNELS_CUDA_GRAPH_H_

#include <cstddef>

#include "linnet/base/function_ref.h"
#include "linnet/kernels/cuda/device.h"

namespace linnet::kernels::cuda {

class OwnStream {
 public:
  OwnStream();
  OwnStream(const OwnStream&) = delete;
  ~OwnStream();
  Stream get() const { return stream_; }

 private:
  Stream stream_ = nullptr;
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  ~Graph();

  // Keeps what `body` starts on the stream, instead of running it. Errors of `body` pass through.
  void Capture(Stream stream, FunctionRef<void()> body);
  void Run(Stream stream) const;

 private:
  void* executable_ = nullptr;  // a cudaGraphExec_t
};

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_GRAPH_H_
