// A CUDA graph of a training update: with it, the host launches all kernels of the update at once.
// Without the graph, the GPU waits for the host if the model is small.
//
//   UpdateGraph graph;                       // this thread now uses a CUDA stream of its own
//   graph.Run([&] { loss = Forward(); loss.backward(); optimizer.Finish(); });    // runs this
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

  // Runs `work`, which must use the same tensors every time and must not wait for the GPU.
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
