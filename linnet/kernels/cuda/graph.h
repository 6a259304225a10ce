// A non-default stream, and graphs. A graph captures a sequence of kernels once; then each Run()
// launches all of them with one call.
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

  // Records the work that `body` starts on the stream, without running it. Replaces the
  // previous recording. Exceptions of `body` pass through.
  void Capture(Stream stream, FunctionRef<void()> body);
  void Run(Stream stream) const;

 private:
  void* executable_ = nullptr;  // a cudaGraphExec_t
};

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_GRAPH_H_
