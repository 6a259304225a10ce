// A CUDA graph of an update: the host launches all of its kernels at once. Without it, the GPU
// waits for the host when a model is small.
//
//   UpdateGraph graph;                       // this thread now uses a CUDA stream of its own
//   graph.Run([&] { loss = Forward(); loss.backward(); optimizer.Finish(); });    // runs it
//   graph.Run(...);                          // the fourth call records it; later ones replay it
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
  // The first three calls run it directly, the fourth records and replays it, and later ones replay
  // the recording. Tensors that the recorded `work` created keep their memory; every replay
  // overwrites them.
  void Run(const std::function<void()>& work);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_UPDATE_GRAPH_H_
