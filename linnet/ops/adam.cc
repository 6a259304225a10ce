#include "linnet/ops/adam.h"

#include <torch/utils.h>

#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

bool IsFused(const Tensor& parameter) {
  if constexpr (kHasFused) return FusedAdam(parameter);
  return false;
}

}  // namespace

std::vector<double> GradientNorms(const std::vector<Tensor>& parameters) {
  std::vector<double> norms(parameters.size());
  if constexpr (kHasFused) FusedGradientNorms(parameters, norms);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& gradient = parameters[i].grad();
    if (gradient.defined() && !IsFused(parameters[i])) norms[i] = gradient.norm().item<double>();
  }
  return norms;
}

void AdamUpdate(std::vector<Tensor>& parameters, std::vector<Tensor>& first_moments,
                std::vector<Tensor>& second_moments, const std::vector<double>& gradient_scales,
                const kernels::AdamStep& step) {
  if constexpr (kHasFused) {
    FusedAdamUpdate(parameters, first_moments, second_moments, gradient_scales, step);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) continue;
    if (!IsFused(parameters[i])) {
      Tensor &m = first_moments[i], &v = second_moments[i];
      gradient.mul_(gradient_scales[i]);
      m.mul_(step.beta1).add_(gradient, 1 - step.beta1);
      v.mul_(step.beta2).addcmul_(gradient, gradient, 1 - step.beta2);
      parameters[i].mul_(step.decay);
      if (step.adaptive) {
        parameters[i].addcdiv_(m, v.sqrt().mul_(step.root_scale).add_(step.eps), -step.step);
      } else {
        parameters[i].add_(m, -step.step);
      }
    }
    gradient.reset();
  }
}

FlatAdam::FlatAdam(const std::vector<Tensor>& parameters) : parameters_(parameters) {
  torch::NoGradGuard no_grad;
  std::vector<Tensor> rows;
  std::vector<int64_t> sizes;
  for (const Tensor& parameter : parameters_) {
    rows.push_back(parameter.detach());
    sizes.push_back(Padded(parameter.numel()));
  }
  values_ = Joined(rows);
  first_ = torch::zeros_like(values_);
  second_ = torch::zeros_like(values_);
  numbers_ = torch::zeros({3}, values_.options());
  finite_ = torch::ones({}, values_.options().dtype(torch::kBool));
  owner_ = torch::repeat_interleave(torch::tensor(sizes, torch::kInt64))
               .to(torch::kInt32)
               .to(values_.device());
  const std::vector<Tensor> views = Views(values_);
  for (size_t i = 0; i < views.size(); ++i) parameters_[i].set_data(views[i]);
}

int64_t FlatAdam::Padded(int64_t size) {
  constexpr int64_t kAlignment = 64;  // elements, for matrix products and vector loads
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

Tensor FlatAdam::Joined(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> rows;
  for (const Tensor& x : tensors) {
    rows.push_back(x.reshape(-1));
    const int64_t padding = Padded(x.numel()) - x.numel();
    if (padding > 0) rows.push_back(torch::zeros({padding}, x.options()));
  }
  return torch::cat(rows);
}

std::vector<Tensor> FlatAdam::Views(const Tensor& flat) const {
  std::vector<Tensor> views;
  int64_t begin = 0;
  for (const Tensor& parameter : parameters_) {
    views.push_back(flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    begin += Padded(parameter.numel());
  }
  return views;
}

void FlatAdam::Prepare(const kernels::AdamStep& step) {
  const Tensor numbers = torch::tensor({1 - step.decay, step.step, step.root_scale});
  const bool there = !numbers_.device().is_cpu();  // on a GPU; then the copy is asynchronous
  numbers_.copy_(there ? numbers.pin_memory() : numbers, /*non_blocking=*/there);
}

void FlatAdam::Apply(const kernels::AdamStep& step, double clip) {
  std::vector<Tensor> gradients;
  bool all = true;  // whether every parameter has a gradient
  for (Tensor& parameter : parameters_) {
    Tensor& gradient = parameter.mutable_grad();
    all = all && gradient.defined();
    gradients.push_back(gradient.defined() ? gradient.contiguous() : torch::zeros_like(parameter));
  }
  const Tensor norms = torch::stack(at::_foreach_norm(gradients, 2));
  const Tensor good = norms.isfinite().all();
  finite_.logical_and_(good);
  const Tensor on = good.to(values_.scalar_type());  // 1, or 0 (no update) if a norm is not finite
  Tensor gradient = Joined(gradients);
  if (clip > 0) {
    const Tensor scales = (clip / (norms + 1e-6)).masked_fill_(norms <= clip, 1);
    gradient.mul_(scales.index_select(0, owner_));
  }
  gradient.masked_fill_(good.logical_not(), 0);
  // keep: step.decay, the factor of the parameters. size: step.step. If a norm is not finite, keep
  // is 1 and size is 0.
  const Tensor keep = 1 - on * numbers_[0], size = on * numbers_[1];
  const auto update = [&](const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& g) {
    m.lerp_(g, on * (1 - step.beta1));
    v.lerp_(g.square(), on * (1 - step.beta2));
    p.mul_(keep);
    if (step.adaptive) {
      p.addcmul_(m / v.sqrt().mul_(numbers_[2]).add_(step.eps), size, -1);
    } else {
      p.addcmul_(m, size, -1);
    }
  };
  if (all) {
    update(values_, first_, second_, gradient);
  } else {
    int64_t begin = 0;
    for (const Tensor& parameter : parameters_) {
      const auto part = [&](const Tensor& x) { return x.narrow(0, begin, parameter.numel()); };
      if (parameter.grad().defined()) {
        update(part(values_), part(first_), part(second_), part(gradient));
      }
      begin += Padded(parameter.numel());
    }
  }
  for (Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

}  // namespace linnet::ops
