#include "linnet/kernels/cuda/causal_linear_plan.h"

#include <algorithm>

namespace linnet::kernels::cuda {

bool SupportsCausalLinear(const CausalLinearShape& shape) {
  const auto fits = [](size_t n) { return n > 0 && n <= 128 && n % 8 == 0; };
  return fits(shape.dim) && fits(shape.value_dim);
}

CausalLinearPlan PlanCausalLinear(const CausalLinearShape& shape,
                                  const CausalLinearOptions& options, int processors, bool packed,
                                  unsigned segments) {
  CausalLinearPlan plan{.shape = shape, .options = options, .packed = packed};
  if (!packed) {
    // With several segments, each block first sums up its segment, which costs half as much as the
    // products themselves. So segments pay off only if the GPU would otherwise be at least half
    // empty.
    constexpr size_t kLeast = 512;  // minimum positions of a segment
    const size_t blocks = std::max<size_t>(1, shape.batch * shape.heads);
    size_t wanted = segments;
    if (segments == 0) {
      wanted = 2 * blocks > static_cast<size_t>(processors)
                   ? 1
                   : 2 * static_cast<size_t>(processors) / blocks;
      wanted = std::min(wanted, shape.length / kLeast);
    }
    // Segments consist of units of kMostChunk positions.
    const size_t units = (shape.length + kMostChunk - 1) / kMostChunk;
    wanted = std::clamp<size_t>(wanted, 1, std::max<size_t>(1, units));
    const size_t each = std::max<size_t>(1, (units + wanted - 1) / wanted);
    plan.segment_length = static_cast<unsigned>(each * kMostChunk);
    plan.segments = std::max(1u, static_cast<unsigned>((units + each - 1) / each));
  }
  plan.kept = ProductRows(shape, packed);
  plan.scratch = ScratchPartsOf(plan).floats;
  return plan;
}

}  // namespace linnet::kernels::cuda
