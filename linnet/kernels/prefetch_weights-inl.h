// Prefetching of packed weights, shared by the products of linear.h and narrow_linear.h. With few
// rows, a product waits for its weights, so they are fetched a little ahead into the first-level
// cache. With more rows, whole panels of weights are fetched ahead into the second-level cache,
// since the first-level cache is full of the panels in use.
#if defined(LINNET_KERNELS_PREFETCH_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_PREFETCH_WEIGHTS_INL_H_
#undef LINNET_KERNELS_PREFETCH_WEIGHTS_INL_H_
#else
#define LINNET_KERNELS_PREFETCH_WEIGHTS_INL_H_
#endif

#include <cstddef>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

inline constexpr size_t kMostNearRows = 3;  // fetched into the first-level cache
inline constexpr size_t kBlockPanels = 2;   // panels that are multiplied by all tiles in turn

template <size_t kRows>
HWY_INLINE void PrefetchWeights(const void* at) {
  if constexpr (kRows <= kMostNearRows) {
    hwy::Prefetch(at);
  } else {
    __builtin_prefetch(at, /*rw=*/0, /*locality=*/2);  // into the second-level cache
  }
}

// With more than kMostNearRows rows: how many panels ahead of its own a tile prefetches. `tile` of
// `tiles`: its place among the tiles that have the same panels; `panels`: how many it reads side by
// side. Of several tiles, the first two fetch the next block. The second fetches one panel further
// on, so that each finds about half of what it would fetch in the cache already. All others get 0,
// the line in use.
constexpr size_t PanelsAhead(size_t tile, size_t tiles, size_t panels) {
  if (tiles == 1) return panels;
  return tile < 2 ? kBlockPanels + tile : 0;
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_PREFETCH_WEIGHTS_INL_H_
