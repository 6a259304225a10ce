#include "linnet/kernels/cuda/scan_plan.h"

namespace linnet::kernels::cuda {

bool SupportsScan(const ScanShape& shape, const ScanOptions& options) {
  const auto fits = [](size_t n) { return n > 0 && n <= kMostScanWidth && n % 4 == 0; };
  return fits(shape.dim) && fits(shape.value_dim) && !options.normalize;
}

ScanPlan PlanScan(const ScanShape& shape, const ScanOptions& options, bool packed) {
  ScanPlan plan{.shape = shape, .options = options, .packed = packed};
  const size_t heads = shape.batch * shape.heads, rows = ScanRows(plan);
  plan.kept = ScanWrittenFloats(plan) + heads * shape.dim * shape.value_dim;
  plan.scratch = (heads * shape.dim + 3) / 4 * 4;
  if (options.write != ScanWrite::kAdd) plan.scratch += rows * (shape.value_dim + shape.dim);
  if (options.decay == ScanDecay::kHead) plan.scratch += rows * shape.dim;
  return plan;
}

}  // namespace linnet::kernels::cuda
