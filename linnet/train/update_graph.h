// A CUDA graph of an update: the host launches all of its kernels at once. Small models wait for
// the host otherwise.
//
//   UpdateGraph graph;                       // from here on, this thread's work has its own stream
//   graph.Run([&] { loss = Forward(); loss.backward(); optimizer.Apply(); });    // as usual
//   graph.Run(...);                          // after some runs: recorded, then replayed
#ifndef LINNET_TRAIN_UPDATE_GRAPH_H_
#define LINNET_TRAIN_UPDATE_GRAPH_H_

#include <functional>
#include <memory>

namespace linnet::train {

class UpdateGraph {
 public:
  // Throws InputError in a build without LINNET_CUDA.
  UpdateGraph();
  ~UpdateGraph();

  // Runs `work`, which reads and writes the same tensors every time and does not wait for the GPU.
  // The first few times it runs as it is; then it is recorded, and what was recorded runs. Tensors
  // that the recorded call made keep their place and are overwritten.
  void Run(const std::function<void()>& work);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_UPDATE_GRAPH_H_
