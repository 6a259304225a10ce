#include "linnet/ops/adam.h"

#include <torch/utils.h>

#include <cmath>

#include "linnet/ops/parallel.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

// Whether the kernels can walk this parameter and its gradient.
bool Walkable(const Tensor& parameter) {
  const Tensor& gradient = parameter.grad();
  return Fused(parameter) && parameter.is_contiguous() && gradient.is_contiguous() &&
         gradient.scalar_type() == torch::kFloat32;
}

// Pieces of tensors, small enough to share out evenly.
struct Piece {
  size_t tensor, begin, size;
};
std::vector<Piece> Cut(const std::vector<Tensor>& parameters) {
  constexpr size_t kPiece = 1 << 16;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined() || !Walkable(parameters[i])) continue;
    const size_t size = static_cast<size_t>(parameters[i].numel());
    for (size_t begin = 0; begin < size; begin += kPiece) {
      pieces.push_back({i, begin, std::min(kPiece, size - begin)});
    }
  }
  return pieces;
}

}  // namespace

std::vector<double> GradientNorms(const std::vector<Tensor>& parameters) {
  std::vector<double> norms(parameters.size());
  const std::vector<Piece> pieces = Cut(parameters);
  std::vector<double> squares(pieces.size());
  AtParallelFor(pieces.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const float* gradient = parameters[pieces[i].tensor].grad().data_ptr<float>();
      squares[i] = kernels::SquaredNorm(pieces[i].size, gradient + pieces[i].begin);
    }
  });
  for (size_t i = 0; i < pieces.size(); ++i) norms[pieces[i].tensor] += squares[i];
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    norms[i] = Walkable(parameters[i]) ? std::sqrt(norms[i]) : gradient.norm().item<double>();
  }
  return norms;
}

void AdamUpdate(std::vector<Tensor>& parameters, std::vector<Tensor>& first_moments,
                std::vector<Tensor>& second_moments, const std::vector<double>& gradient_scales,
                const kernels::AdamStep& step) {
  const std::vector<Piece> pieces = Cut(parameters);
  AtParallelFor(pieces.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[i];
      kernels::AdamStep scaled = step;
      scaled.gradient_scale = static_cast<float>(gradient_scales[piece.tensor]);
      const auto at = [&](const Tensor& t) { return t.data_ptr<float>() + piece.begin; };
      kernels::AdamUpdate(piece.size, scaled, at(parameters[piece.tensor].grad()),
                          at(parameters[piece.tensor]), at(first_moments[piece.tensor]),
                          at(second_moments[piece.tensor]));
    }
  });
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) continue;
    if (!Walkable(parameters[i])) {
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

}  // namespace linnet::ops
