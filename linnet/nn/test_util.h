// For tests: random tensors, comparisons, and expected errors.
#ifndef LINNET_NN_TEST_UTIL_H_
#define LINNET_NN_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "linnet/error.h"

namespace linnet::nn {

inline double Largest(const torch::Tensor& x) { return x.abs().max().item<double>(); }
// The largest difference; NaN if an operand holds NaN.
inline double Off(const torch::Tensor& a, const torch::Tensor& b) { return Largest(a - b); }
// The largest difference relative to the largest magnitude of `want`.
inline double RelativeOff(const torch::Tensor& got, const torch::Tensor& want) {
  return Off(got, want) / std::max(Largest(want), 1e-30);
}
inline bool Finite(const torch::Tensor& x) { return torch::isfinite(x).all().item<bool>(); }

inline torch::Tensor Lengths(const std::vector<int64_t>& lengths) { return torch::tensor(lengths); }

// Standard normal numbers from libtorch's default generator; the same values for every type.
inline torch::Tensor Normal(const std::vector<int64_t>& sizes,
                            torch::ScalarType type = torch::kFloat64) {
  return torch::randn(sizes, torch::kFloat64).to(type);
}

// Gradients of a scalar; zeros for inputs that do not affect it.
inline std::vector<torch::Tensor> Gradients(const torch::Tensor& loss,
                                            const std::vector<torch::Tensor>& inputs) {
  std::vector<torch::Tensor> gradients =
      torch::autograd::grad({loss}, inputs, {}, {}, false, /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = torch::zeros_like(inputs[i]);
  }
  return gradients;
}

// Types to test and their tolerances. Operations run their plain forms in double and their fused
// forms in fp32 (ops/plain.h); the forms differ by rounding only.
struct Rounding {
  torch::ScalarType type;
  double off;  // maximum of RelativeOff()
};
inline constexpr Rounding kRoundings[] = {{torch::kFloat64, 1e-12}, {torch::kFloat32, 1e-4}};

// Divisions of a sequence into pieces: the whole, its first or last position alone, a block of the
// fused kernels (32 positions) and the rest, pieces of unequal lengths and, for short sequences,
// single positions.
inline std::vector<std::vector<int64_t>> Cuts(int64_t length) {
  std::vector<std::vector<int64_t>> cuts = {{length}};
  if (length > 1) {
    cuts.push_back({1, length - 1});
    cuts.push_back({length - 1, 1});
  }
  if (length <= 9) cuts.emplace_back(static_cast<size_t>(length), 1);
  if (length > 32) {
    cuts.push_back({32, length - 32});
    cuts.push_back({5, 1, 1, 7, length - 14});
  }
  return cuts;
}

// The message of the InputError that `body` throws.
template <class Body>
std::string ErrorOf(Body body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}
inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A path for a temporary file, unique to this process.
inline std::string TemporaryPath(const std::string& name) {
  return std::filesystem::temp_directory_path() / StrCat("linnet_nn_", name, ".", getpid());
}

}  // namespace linnet::nn

#endif  // LINNET_NN_TEST_UTIL_H_
