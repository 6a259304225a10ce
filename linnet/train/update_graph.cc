#include "linnet/train/update_graph.h"

#include "linnet/error.h"

#ifdef LINNET_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/cuda.h>
#endif

namespace linnet::train {

#ifdef LINNET_CUDA

struct UpdateGraph::Impl {
  static constexpr int kWarmUp = 3;  // libraries choose algorithms and allocate in the first runs

  int runs = 0;
  at::cuda::CUDAGraph graph;
};

UpdateGraph::UpdateGraph() : impl_(std::make_unique<Impl>()) {
  torch::cuda::synchronize();  // waits for earlier work on the previous stream
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool());
}

void UpdateGraph::Run(const std::function<void()>& work) {
  if (impl_->runs < Impl::kWarmUp) {
    ++impl_->runs;
    return work();
  }
  if (impl_->runs == Impl::kWarmUp) {
    ++impl_->runs;
    try {
      impl_->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
      work();
      impl_->graph.capture_end();
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& e) {
      throw InputError("--cuda-graph: libtorch cannot record an update of this model (",
                       e.what_without_backtrace(), "); train it without --cuda-graph");
    }
  }
  impl_->graph.replay();
}

#else

struct UpdateGraph::Impl {};

UpdateGraph::UpdateGraph() {
  throw InputError("--cuda-graph: this build has no CUDA code; see docs/gpu.md on how to build it");
}

void UpdateGraph::Run(const std::function<void()>& work) { work(); }

#endif

UpdateGraph::~UpdateGraph() = default;

}  // namespace linnet::train
