#include <torch/utils.h>

#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

// The elements [begin, begin + size) of the parameter of index `tensor`.
struct Piece {
  size_t tensor, begin, size;
};
// Returns the pieces of all parameters that the fused form takes. Pieces are small, so that all
// threads get about the same amount of work.
std::vector<Piece> Cut(const std::vector<Tensor>& parameters) {
  constexpr size_t kPiece = 1 << 16;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!FusedAdam(parameters[i])) continue;
    const size_t size = static_cast<size_t>(parameters[i].numel());
    for (size_t begin = 0; begin < size; begin += kPiece) {
      pieces.push_back({i, begin, std::min(kPiece, size - begin)});
    }
  }
  return pieces;
}

}  // namespace

bool FusedAdam(const Tensor& parameter) {
  const Tensor& gradient = parameter.grad();
  return gradient.defined() && Fused(parameter) && parameter.is_contiguous() &&
         gradient.is_contiguous() && gradient.scalar_type() == torch::kFloat32;
}

void FusedGradientNorms(const std::vector<Tensor>& parameters, std::vector<double>& norms) {
  const std::vector<Piece> pieces = Cut(parameters);
  std::vector<double> squares(pieces.size());
  AtParallelFor(pieces.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const float* gradient = parameters[pieces[i].tensor].grad().data_ptr<float>();
      squares[i] = kernels::SquaredNorm(pieces[i].size, gradient + pieces[i].begin);
    }
  });
  for (const Piece& piece : pieces) norms[piece.tensor] = 0;
  for (size_t i = 0; i < pieces.size(); ++i) norms[pieces[i].tensor] += squares[i];
  for (const Piece& piece : pieces) {
    if (piece.begin == 0) norms[piece.tensor] = std::sqrt(norms[piece.tensor]);
  }
}

void FusedAdamUpdate(const std::vector<Tensor>& parameters,
                     const std::vector<Tensor>& first_moments,
                     const std::vector<Tensor>& second_moments,
                     const std::vector<double>& gradient_scales, const kernels::AdamStep& step) {
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
}

}  // namespace linnet::ops
