// Benchmarks of training on a GPU. They need only libtorch, so a build with LINNET_PLAIN
// (docs/gpu.md) has them.
#ifndef BENCH_TORCH_DEVICE_H_
#define BENCH_TORCH_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace linnet::bench::on_device {

struct AttentionOptions {
  int64_t min_n = 512, max_n = 65536, tokens = 65536;
  bool causal = true, json = false;
  std::vector<std::string> methods, precisions;  // if empty: all methods, and fp32
  double seconds = 0.3;                          // per length
};
// Measures time and peak memory per sample of a forward and a backward pass, by sequence length.
void BenchAttention(const AttentionOptions& options);

struct TrainOptions {
  std::string dataset = "mnist";                    // or cifar10
  std::vector<std::string> attentions, precisions;  // if empty: causal-linear, and fp32 + bf16
  std::vector<int> batches;                         // if empty: the paper's batch size
  int layers = 0;                                   // 0: as in the paper
  double seconds = 1;                               // per model
  bool graph = false;    // also times the update as a CUDA graph, without the host's work
  bool profile = false;  // also lists the kernels of one update
  bool json = false;
};
// Times an update of the paper's image models, on random bytes.
void BenchTrain(const TrainOptions& options);

}  // namespace linnet::bench::on_device

#endif  // BENCH_TORCH_DEVICE_H_
