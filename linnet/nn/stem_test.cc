// Compares the causal stem of images with its definition in plain loops (model/stem_ref.h).
#include "linnet/nn/stem.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "linnet/model/stem_ref.h"
#include "linnet/nn/test_util.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

ModelSpec Image(int width, int height, int channels, const StemSpec& stem) {
  ModelSpec spec;
  spec.stack.d_model = 7;
  spec.part = ImageSpec{.width = width, .height = height, .channels = channels};
  spec.input.max_length = width * height * channels - 1;
  spec.input.stem = stem;
  return spec;
}
ModelSpec Pixels(int width, int height, const StemSpec& stem) {
  ModelSpec spec = Image(width, height, 3, stem);
  spec.input.whole_pixels = true, spec.input.max_length = width * height;
  return spec;
}
// Tokens for a stem of this spec.
Tensor Tokens(const ModelSpec& spec, int64_t count) {
  if (!spec.input.whole_pixels) {
    return torch::randint(256, {count, spec.input.max_length}, torch::kInt64);
  }
  const Tensor tokens = torch::randint(1 << 24, {count, spec.input.max_length}, torch::kInt64);
  tokens.select(1, 0).fill_(kBeginPixel);
  return tokens;
}

// Gray and color images. Some windows are wider or higher than the image, or have only one row or
// one position.
std::vector<ModelSpec> Specs() {
  return {Image(28, 28, 1, {.channels = 5}),
          Image(9, 5, 1, {.channels = 4, .rows = 1, .columns = 3, .second_rows = 4}),
          Image(3, 7, 1, {.channels = 3, .second_rows = 1, .second_columns = 1}),
          Image(6, 5, 3, {.channels = 4, .rows = 3, .columns = 5}),
          Image(2, 3, 3, {.channels = 2, .rows = 16, .second_columns = 9}),
          Image(1, 4, 1, {.channels = 2}),
          Pixels(6, 5, {.channels = 4, .rows = 3, .columns = 5}),
          Pixels(3, 4, {.channels = 3, .second_rows = 1, .second_columns = 1})};
}

using Parameters = std::map<std::string, Tensor>;

// The output of StemRef() with these parameters, [N, L, d_model].
Tensor Reference(const ModelSpec& spec, const Parameters& parameters, const Tensor& tokens) {
  const StemProduct product = [&](const std::string& name, const std::vector<double>& x) {
    const std::string own = name.substr(std::string("stem.").size());
    const Tensor weight = parameters.at(own + ".weight"), bias = parameters.at(own + ".bias");
    EXPECT_EQ(weight.size(1), static_cast<int64_t>(x.size())) << name;
    std::vector<double> y;
    for (int64_t o = 0; o < weight.size(0); ++o) {
      double sum = bias.data_ptr<double>()[o];
      for (size_t i = 0; i < x.size(); ++i) {
        sum += weight.data_ptr<double>()[static_cast<size_t>(o) * x.size() + i] * x[i];
      }
      y.push_back(sum);
    }
    return y;
  };
  std::vector<Tensor> sequences;
  for (int64_t n = 0; n < tokens.size(0); ++n) {
    const Tensor own = tokens[n].to(torch::kInt32).contiguous();
    const std::vector<int32_t> values(own.data_ptr<int32_t>(),
                                      own.data_ptr<int32_t>() + own.numel());
    std::vector<Tensor> rows;
    for (const std::vector<double>& row : StemRef(spec, values, product)) {
      rows.push_back(torch::tensor(row, torch::kFloat64));
    }
    sequences.push_back(torch::stack(rows));
  }
  return torch::stack(sequences);
}

Parameters ParametersOf(const Stem& stem) {
  Parameters parameters;
  for (const auto& item : stem->named_parameters()) {
    parameters[item.key()] = item.value().detach().clone();
  }
  return parameters;
}

TEST(Stem, WholeAndStepsMatchTheReference) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  for (const ModelSpec& spec : Specs()) {
    Stem stem(spec);
    const int64_t length = spec.input.max_length;
    const Tensor tokens = Tokens(spec, 2);
    stem->to(torch::kFloat64);
    const Tensor want = Reference(spec, ParametersOf(stem), tokens);
    for (const auto& [type, tolerance] :
         {std::pair(torch::kFloat64, 1e-12), {torch::kFloat32, 1e-6}}) {
      stem->to(type);
      EXPECT_LT(Off(stem->forward(tokens), want), tolerance) << ToJson(spec);
      for (const int64_t cut : {int64_t{1}, length / 2}) {
        EXPECT_LT(Off(stem->forward(tokens.narrow(1, 0, cut)), want.narrow(1, 0, cut)), tolerance);
      }
      StemState state, fork;
      for (int64_t t = 0; t < length; ++t) {
        if (t == length / 2) fork = state;
        EXPECT_LT(Off(stem->step(tokens.select(1, t), t, state), want.select(1, t)), tolerance)
            << t << " of " << ToJson(spec);
      }
      EXPECT_LT(Off(stem->step(tokens.select(1, length / 2), length / 2, fork),
                    want.select(1, length / 2)),
                tolerance);
    }
  }
}

// Each output depends on the bytes in its windows, and on no later byte.
TEST(Stem, IsCausal) {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  for (const ModelSpec& spec : Specs()) {
    Stem stem(spec);
    stem->to(torch::kFloat64);
    const int64_t length = spec.input.max_length;
    const Tensor tokens = Tokens(spec, 1);
    const Tensor want = stem->forward(tokens);
    const int64_t first = StemFirst(spec);
    for (int64_t t = first; t < length; t += 1 + length / 20) {
      Tensor other = tokens.clone();
      other.select(1, t).add_(128).remainder_(spec.input.whole_pixels ? 1 << 24 : 256);
      const Tensor off = (stem->forward(other) - want).abs().amax(2)[0];
      if (t > 0) {
        EXPECT_EQ(Largest(off.narrow(0, 0, t)), 0) << t << " of " << ToJson(spec);
      }
      // The byte just read is in the next byte's window, unless the next byte begins a row.
      if ((t + 1 - first) % spec.RowTokens() > 0) {
        EXPECT_GT(off[t].item<double>(), 1e-9) << t << " of " << ToJson(spec);
      }
    }
  }
}

// Compares d sum(out * weights) / d parameter, computed by autograd, with difference quotients of
// the reference. In fp32, the stem runs its kernel.
void CompareGradients(torch::Dtype type, double tolerance) {
  torch::manual_seed(3);
  for (const ModelSpec& spec :
       {Image(5, 4, 1, {.channels = 3}), Image(3, 3, 3, {.channels = 2, .rows = 2, .columns = 3}),
        Pixels(4, 3, {.channels = 2, .rows = 2, .columns = 3})}) {
    Stem stem(spec);
    stem->to(type);
    const Tensor tokens = Tokens(spec, 2);
    const Tensor weights = Normal({2, spec.input.max_length, spec.stack.d_model});
    (stem->forward(tokens) * weights.to(type)).sum().backward();
    Parameters parameters = ParametersOf(stem);
    for (auto& [name, value] : parameters) value = value.to(torch::kFloat64);
    const auto loss = [&] {
      return (Reference(spec, parameters, tokens) * weights).sum().item<double>();
    };
    for (const auto& item : stem->named_parameters()) {
      const Tensor gradient = item.value().grad();
      Tensor changed = parameters.at(item.key()).view(-1);
      for (int64_t i = 0; i < changed.numel(); i += 1 + changed.numel() / 7) {
        double& value = changed.data_ptr<double>()[i];
        const double before = value;
        constexpr double kStep = 1e-5;
        value = before + kStep;
        const double above = loss();
        value = before - kStep;
        const double below = loss();
        value = before;
        const double want = (above - below) / (2 * kStep);
        EXPECT_NEAR(gradient.view(-1)[i].item<double>(), want,
                    tolerance * std::max(1.0, std::abs(want)))
            << item.key() << " at " << i;
      }
    }
  }
}

TEST(Stem, GradientsMatchDifferencesOfTheReference) { CompareGradients(torch::kFloat64, 1e-6); }

TEST(Stem, GradientsInFp32MatchDifferencesOfTheReference) {
  CompareGradients(torch::kFloat32, 1e-5);
}

}  // namespace
}  // namespace linnet::nn
