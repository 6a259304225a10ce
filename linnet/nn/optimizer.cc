#include "linnet/nn/optimizer.h"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "linnet/error.h"
#include "linnet/ops/orthogonalize.h"

namespace linnet::nn {
namespace {

constexpr char kNotFinite[] = "a gradient is NaN or infinite";

// The update of step t, counted from 1: p -= lr * size * m / (sqrt(v) * root_scale + eps) or, if
// `adaptive` is false, p -= lr * size * m.
struct Schedule {
  double size = 0;
  double root_scale = 1;
  bool adaptive = true;
};

Schedule ScheduleAt(const OptimizerOptions& options, int64_t t) {
  const double beta2_t = std::pow(options.beta2, t);
  const double correction1 = 1 - std::pow(options.beta1, t), correction2 = 1 - beta2_t;
  if (options.name != "radam") return {1 / correction1, 1 / std::sqrt(correction2), true};
  const double rho_inf = 2 / (1 - options.beta2) - 1;
  const double rho = rho_inf - 2 * static_cast<double>(t) * beta2_t / correction2;
  if (rho < options.rectify_from) return {1 / correction1, 1, false};
  const double rectification =
      std::sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho));
  // The bias correction of v is folded into `size`: eps is added to the uncorrected sqrt(v).
  return {rectification * std::sqrt(correction2) / correction1, 1, true};
}

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, std::vector<torch::Tensor> parameters,
                     std::vector<size_t> matrices)
    : options_(options), parameters_(std::move(parameters)) {
  if (options.name == "muon") {
    matrices_ = std::move(matrices);
    for (const size_t i : matrices_) {
      if (i >= parameters_.size() || parameters_[i].dim() != 2) {
        throw InputError("muon: parameter ", i, " is not a matrix");
      }
    }
  } else if (options.name != "radam" && options.name != "adam") {
    throw InputError("unknown optimizer '", options.name, "'; choose radam, adam or muon");
  }
  if (options.rectify_from < 4) {
    throw InputError("rectify_from is ", options.rectify_from, "; rectification needs at least 4");
  }
  if (!parameters_.empty() && !parameters_[0].device().is_cpu()) {
    if (options.name == "muon") {
      throw InputError(
          "the optimizer muon runs on the CPU only; choose adam, with a lower learning rate");
    }
    flat_.emplace(parameters_);
    first_ = flat_->first_moments();
    second_ = flat_->second_moments();
    return;
  }
  for (const torch::Tensor& parameter : parameters_) {
    first_.push_back(torch::zeros_like(parameter));
    second_.push_back(torch::zeros_like(parameter));
  }
}

void Optimizer::Step(double learning_rate) {
  torch::NoGradGuard no_grad;
  if (flat_) {
    Begin(learning_rate);
    return Finish();
  }
  // Holds the norms at first; the loop replaces each norm by its gradient's clipping factor.
  std::vector<double> scales = ops::GradientNorms(parameters_);
  for (double& norm : scales) {
    if (!std::isfinite(norm)) throw RuntimeError(kNotFinite);
    norm = options_.clip > 0 && norm > options_.clip ? options_.clip / (norm + 1e-6) : 1;
  }
  for (const size_t i : matrices_) StepMatrix(i, learning_rate, scales[i]);
  ops::AdamUpdate(parameters_, first_, second_, scales, NextStep(learning_rate));
}

void Optimizer::StepMatrix(size_t index, double learning_rate, double gradient_scale) {
  torch::Tensor& matrix = parameters_[index];
  torch::Tensor& gradient = matrix.mutable_grad();
  if (!gradient.defined()) return;
  // The elements of an orthogonal update have a root mean square of 1 / sqrt(the longer side), and
  // those of an Adam update 0.2 or so. At equal size, one learning rate serves both (Liu et al.,
  // "Muon is scalable for LLM training", 2025).
  const double size =
      0.2 * std::sqrt(static_cast<double>(std::max(matrix.size(0), matrix.size(1))));
  ops::MuonUpdate(matrix, gradient, first_[index],
                  {.momentum = options_.momentum,
                   .gradient_scale = gradient_scale,
                   .decay = 1 - learning_rate * options_.weight_decay,
                   .step = learning_rate * size,
                   .precision = options_.precision});
  gradient.reset();
}

bool Optimizer::Begin(double learning_rate) {
  torch::NoGradGuard no_grad;
  begun_ = NextStep(learning_rate);
  flat_->Prepare(begun_);
  return begun_.adaptive;  // false in the first steps of radam
}

void Optimizer::Finish() {
  torch::NoGradGuard no_grad;
  flat_->Apply(begun_, options_.clip);
}

kernels::AdamStep Optimizer::NextStep(double learning_rate) {
  const Schedule schedule = ScheduleAt(options_, ++steps_);
  return {.beta1 = static_cast<float>(options_.beta1),
          .beta2 = static_cast<float>(options_.beta2),
          .decay = static_cast<float>(1 - learning_rate * options_.weight_decay),
          .step = static_cast<float>(learning_rate * schedule.size),
          .root_scale = static_cast<float>(schedule.root_scale),
          .eps = static_cast<float>(options_.eps),
          .adaptive = schedule.adaptive};
}

void Optimizer::Check() const {
  if (flat_ && !flat_->Finite()) throw RuntimeError(kNotFinite);
}

}  // namespace linnet::nn
