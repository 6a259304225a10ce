// The policies of kernels/scan.h that the benchmarks time.
#ifndef BENCH_SCAN_POLICIES_H_
#define BENCH_SCAN_POLICIES_H_

#include <string>
#include <vector>

#include "linnet/kernels/scan.h"

namespace linnet::bench {

// A policy of the scan: how the state decays, and what a position writes to it. `name` is a
// recurrence with this policy.
struct ScanPolicy {
  const char* name;
  kernels::ScanDecay decay;
  kernels::ScanWrite write;
  // Number of products between a vector and the state (D M multiply-adds each) per position and
  // head: `forward` in the forward pass; `both` in forward + backward, where each product has two
  // gradients and the writes are recomputed.
  double forward, both;
};

inline constexpr ScanPolicy kScanPolicies[] = {
    {"linear", kernels::ScanDecay::kNone, kernels::ScanWrite::kAdd, 2, 7},
    {"simple-gla", kernels::ScanDecay::kHead, kernels::ScanWrite::kAdd, 2, 7},
    {"gla", kernels::ScanDecay::kKey, kernels::ScanWrite::kAdd, 2, 7},
    {"delta-rule", kernels::ScanDecay::kNone, kernels::ScanWrite::kDelta, 3, 10},
    {"gated-delta-rule", kernels::ScanDecay::kHead, kernels::ScanWrite::kDelta, 3, 10},
    {"kda", kernels::ScanDecay::kKey, kernels::ScanWrite::kDelta, 3, 10},
    {"gdn2", kernels::ScanDecay::kKey, kernels::ScanWrite::kTwoSided, 3, 10},
    {"rwkv7", kernels::ScanDecay::kKey, kernels::ScanWrite::kRwkv7, 4, 14},
};

// Whether `names`, the value of --policies, selects the policy. An empty list selects all.
inline bool Chosen(const ScanPolicy& policy, const std::vector<std::string>& names) {
  bool chosen = names.empty();
  for (const std::string& name : names) chosen = chosen || name == policy.name;
  return chosen;
}

}  // namespace linnet::bench

#endif  // BENCH_SCAN_POLICIES_H_
