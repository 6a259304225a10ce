// Measures this machine's matrix-product rate, for the benchmarks that run models.
//
//   Products products(Precision::kInt8, threads);
//   products.Run(pool);                     // computes products.Operations() operations
#ifndef BENCH_PRODUCTS_H_
#define BENCH_PRODUCTS_H_

#include <cstddef>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/thread_pool.h"
#include "linnet/kernels/narrow_linear.h"
#include "linnet/model.h"
#include "linnet/model/precision.h"
#include "linnet/model/spec.h"

namespace linnet::bench {

// One matrix product per thread, of a typical size: [128, 256] by [256, 1024].
class Products {
 public:
  Products(Precision precision, size_t threads);

  void Run(ThreadPool& pool);
  double Operations() const {
    return 2.0 * static_cast<double>(kRows * kIn * kOut * workers_.size());
  }

 private:
  static constexpr size_t kRows = 128, kIn = 256, kOut = 1024;
  struct Worker {
    AlignedBuffer<std::byte> packed, x;  // the packed weight matrix, and the inputs
    AlignedBuffer<float> y;              // the outputs
    kernels::NarrowRows rows;            // the inputs in bf16 or int8, in the memory of x
  };
  Precision precision_;
  std::vector<Worker> workers_;
};

// Operations (two per multiply-add) in the matrix products of one token. With patches: their mean.
double ProductOperations(const ModelSpec& spec);

// Rates of the machine, measured beside the work that they limit.
struct MachineRates {
  double read_seconds = 0;  // to read the model's weights once
  double product_rate = 0;  // operations per second of matrix products
};

// The limit of a recurrent step: the least seconds per sequence of a batch. It is the longer of two
// times, reading the weights once for the whole batch and multiplying with them once per sequence.
// With patches, it is the mean over the tokens of a patch, of sequences that begin it together.
// For softmax attention, the time to read the part `cached` of the full cache is added, at the rate
// of reading the weights.
double TokenLimit(const Model& model, const MachineRates& rates, size_t batch, double cached);

}  // namespace linnet::bench

#endif  // BENCH_PRODUCTS_H_
