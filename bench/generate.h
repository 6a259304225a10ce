// The part of linnet bench generate that runs on a GPU.
#ifndef BENCH_GENERATE_H_
#define BENCH_GENERATE_H_

#include <string>
#include <vector>

#include "bench/bench.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/precision.h"

namespace linnet::bench {

struct CudaBenchOptions {
  size_t lanes = 1;      // parts of the batch that step concurrently (CudaOptions::lanes)
  double seconds = 1.0;  // minimum time to measure; always at least one batch
  bool profile = false;  // also times each kernel of a step
};

// Times the generation of images on a GPU, `batch` images at a time. The limit is the longer of two
// times: moving the weights and states at the rate of a large copy, and computing the matrix
// products at the rate of a large product. Both rates are measured in the same run.
std::vector<Record> MeasureGenerationOnCuda(const Checkpoint& checkpoint, const std::string& name,
                                            Precision precision, size_t batch,
                                            const CudaBenchOptions& options);

}  // namespace linnet::bench

#endif  // BENCH_GENERATE_H_
