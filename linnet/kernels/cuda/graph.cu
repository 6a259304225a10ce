#include "linnet/kernels/cuda/graph.h"

#include "linnet/kernels/cuda/launch.cuh"

namespace linnet::kernels::cuda {

OwnStream::OwnStream() {
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  stream_ = stream;
}
OwnStream::~OwnStream() { cudaStreamDestroy(static_cast<cudaStream_t>(stream_)); }

Graph::~Graph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}

void Graph::Capture(Stream stream, FunctionRef<void()> body) {
  const auto on = static_cast<cudaStream_t>(stream);
  cudaGraph_t graph = nullptr;
  Check(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), "capturing kernels");
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(on, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  Check(cudaStreamEndCapture(on, &graph), "capturing kernels");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  Check(made, "making a graph of kernels");
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
  executable_ = executable;
}

void Graph::Run(Stream stream) const {
  Check(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), static_cast<cudaStream_t>(stream)),
      "starting a graph of kernels");
}

}  // namespace linnet::kernels::cuda
