#include "linnet/ops/orthogonalize.h"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

// An iteration replaces each singular value s by a s + b s^3 + c s^5.
struct Quintic {
  double a, b, c;
};

// Each polynomial has the least maximum error |1 - p(s)| on the interval that holds the values
// between 0.01 and 1 after the iterations before it (Amsel et al., "The Polar Express", 2025).
constexpr Quintic kIterations[] = {
    {8.0934, -23.6204, 17.4462}, {3.6366, -2.7219, 0.5365}, {2.6613, -1.9772, 0.4526}};

// x is [k, n] with k <= n, as in the next function.
Orthogonal OrthogonalizeRows(const Tensor& x) {
  // The iterations need only G = X X^T, since X becomes P X with P = a + b G + c G^2. `factor` is
  // the product of all P.
  Tensor gram = torch::mm(x, x.t()), square = torch::mm(gram, gram), factor;
  // The norm of G^2 is the sum of the 8th powers of the singular values, to the power of 1/2.
  const double bound = std::sqrt(square.norm().item<double>());  // of G's eigenvalues
  gram.div_(bound);
  square.div_(bound * bound);
  for (const Quintic& p : kIterations) {
    if (factor.defined()) square = torch::mm(gram, gram);
    Tensor step = square.mul_(p.c).add_(gram, p.b);
    step.diagonal().add_(p.a);
    factor = factor.defined() ? torch::mm(factor, step) : step;
    if (&p != std::end(kIterations) - 1) gram = torch::mm(torch::mm(gram, step), step);
  }
  return {torch::mm(factor, x), 1 / std::sqrt(bound)};
}

// c = a b or, if `accumulate`, c += a b, in fp32, for a and b in bf16.
void Product(const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate = false) {
  if constexpr (kHasFused) {
    if (Fused(c)) return FusedBf16Product(a, b, c, accumulate);
  }
  const Tensor product = torch::mm(a.to(torch::kFloat32), b.to(torch::kFloat32));
  accumulate ? c.add_(product) : c.copy_(product);
}

// factor * x, rounded to bf16.
Tensor Narrowed(const Tensor& x, double factor = 1) {
  if constexpr (kHasFused) {
    if (Fused(x)) return FusedNarrow(x, factor);
  }
  return (x * factor).to(torch::kBFloat16);
}

// Computes X X^T from X in every iteration. In bf16, the other function would lose small singular
// values, which X X^T has squared, beside large ones.
Orthogonal OrthogonalizeRowsBf16(const Tensor& x, double largest) {
  // Rounding can make a singular value leave the interval of the next polynomial, which grows
  // steeply there.
  constexpr double kMargin = 0.98;
  const Tensor gram = torch::empty({x.size(0), x.size(0)}, x.options());
  const Tensor square = torch::empty_like(gram);
  // X is scale * x / largest, so that no pass over x only multiplies it: with G and S for x /
  // largest, a X + (b X X^T + c (X X^T)^2) X is a scale (x + (b/a scale^2 G + c/a scale^4 S) x) /
  // largest.
  double scale = 1;
  for (const Quintic& p : kIterations) {
    const Tensor narrow = Narrowed(x, 1 / largest);
    Product(narrow, narrow.t(), gram);
    const Tensor narrow_gram = Narrowed(gram);
    Product(narrow_gram, narrow_gram, square);
    if (&p == kIterations) scale = std::pow(square.norm().item<double>(), -0.25);
    scale *= kMargin;
    square.mul_(p.c / p.a * std::pow(scale, 4)).add_(gram, p.b / p.a * scale * scale);
    Product(Narrowed(square, largest), narrow, x, /*accumulate=*/true);
    scale *= p.a;
  }
  return {x, scale / largest};
}

Orthogonal Orthogonalize(const Tensor& x, double largest, Precision precision) {
  const bool narrow = precision == Precision::kBf16;
  if (largest == 0 || (narrow && largest < 1e-30)) return {x.zero_(), 1};
  if (!narrow) x.div_(largest);  // so that powers neither overflow nor vanish
  const auto rows = [&](const Tensor& wide) {
    return narrow ? OrthogonalizeRowsBf16(wide, largest) : OrthogonalizeRows(wide);
  };
  if (x.size(0) <= x.size(1)) return rows(x);
  const Orthogonal columns = rows(x.t());
  return {columns.matrix.t(), columns.scale};
}

}  // namespace

Orthogonal Orthogonalize(const Tensor& x, Precision precision) {
  const auto [least, most] = torch::aminmax(x);
  return Orthogonalize(x, std::max(-least.item<double>(), most.item<double>()), precision);
}

void MuonUpdate(const Tensor& parameter, const Tensor& gradient, const Tensor& average,
                const MuonOptions& options) {
  if constexpr (kHasFused) {
    if (Fused(parameter) && parameter.is_contiguous() && gradient.is_contiguous() &&
        average.is_contiguous() && gradient.scalar_type() == torch::kFloat32) {
      const float largest =
          FusedMuonAverage(gradient, average, options.gradient_scale, options.momentum);
      const Orthogonal update = Orthogonalize(gradient, largest, options.precision);
      return FusedMuonStep(parameter, update.matrix.contiguous(), options.decay,
                           options.step * update.scale);
    }
  }
  const Tensor g = gradient.mul_(options.gradient_scale);
  average.mul_(options.momentum).add_(g);
  const Orthogonal update =
      Orthogonalize(g.add(average, options.momentum).contiguous(), options.precision);
  parameter.mul_(options.decay).add_(update.matrix, -options.step * update.scale);
}

}  // namespace linnet::ops
