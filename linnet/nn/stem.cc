#include "linnet/nn/stem.h"

#include <torch/utils.h>

#include <algorithm>

#include "linnet/nn/register_at.h"
#include "linnet/ops/masked_convolution.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

// Appends `last` [N, 1, ...] to `past` (undefined: empty) and keeps the last `most` entries.
Tensor Appended(const Tensor& past, const Tensor& last, int64_t most) {
  const Tensor all = past.defined() ? torch::cat({past, last}, 1) : last;
  const int64_t kept = std::min(all.size(1), most);
  return all.narrow(1, all.size(1) - kept, kept);
}

// The window's inputs for byte n, with zeros outside the image. `values` [N, L, ...] are the values
// of consecutive bytes, up to byte `last`.
Tensor Window(const StemWindow& window, int64_t n, int64_t last, const Tensor& values) {
  const int64_t first = last + 1 - values.size(1);
  std::vector<int64_t> places;  // indices into `padded`; 0: outside the image
  window.ForEach(n, [&](int64_t m) { places.push_back(m < 0 ? 0 : m - first + 1); });
  const Tensor padded = torch::cat({torch::zeros_like(values.narrow(1, 0, 1)), values}, 1);
  return padded.index_select(1, torch::tensor(places, values.device()));
}

}  // namespace

StemImpl::StemImpl(const ModelSpec& spec, ops::Precision precision)
    : bytes_(StemBytes(spec)),
      second_(StemFeatures(spec)),
      values_(StemValues(spec)),
      first_(StemFirst(spec)),
      precision_(precision) {
  const int64_t channels = spec.input.stem.channels;
  const auto add = [&](Weights& weights, const char* name, int64_t in, int64_t out) {
    const std::string full = StrCat(name, ".", weights.size());
    weights.emplace_back(in, out);
    RegisterAt(*this, full, weights.back().ptr());
  };
  for (int k = 0; k < bytes_.colors; ++k) {
    add(features_, "features", StemInputs(spec, k), channels);
    add(output_, "output", channels * second_.Inputs(k), spec.EmbeddingWidth());
  }
}

Tensor StemImpl::Values(const Tensor& tokens) const {
  const auto scaled = [&](const Tensor& byte) {
    return byte.to(features_[0]->weight.scalar_type()) / 128 - 1;
  };
  if (values_ == 1) return scaled(tokens).unsqueeze(-1);
  std::vector<Tensor> colors;
  for (const int shift : {16, 8, 0}) {
    colors.push_back(scaled(tokens.bitwise_right_shift(shift).bitwise_and(255)));
  }
  return torch::stack(colors, -1);
}

Tensor StemImpl::forward(const Tensor& tokens) {
  const int64_t length = tokens.size(1), row_bytes = int64_t{bytes_.width} * bytes_.colors;
  const int64_t given = length - first_;                           // bytes
  const int64_t rows = (length - first_ + row_bytes) / row_bytes;  // up to the last one's successor
  const Tensor bytes = Values(tokens).narrow(1, first_, given);
  const Tensor image = torch::constant_pad_nd(bytes, {0, 0, 0, rows * row_bytes - given})
                           .view({-1, rows, bytes_.width, bytes_.colors * values_});
  std::vector<Tensor> outputs;
  for (int k = 0; k < bytes_.colors; ++k) {
    const Tensor features =
        ops::MaskedConvolution(image, features_[k]->weight, features_[k]->bias,
                               {.rows = bytes_.rows, .columns = bytes_.columns});
    // Position t computes the features of byte t + 1 - first_. Those of byte 0, if there is no such
    // position, are zeros.
    if (first_ == 0 && k == 0) features.select(1, 0).select(1, 0).zero_();
    outputs.push_back(ops::MaskedConvolution(
        features, output_[k]->weight, output_[k]->bias,
        {.rows = second_.rows, .columns = second_.columns, .gelu = true, .precision = precision_}));
  }
  return (outputs.size() == 1 ? outputs[0] : torch::stack(outputs, 3))
      .reshape({tokens.size(0), rows * row_bytes, -1})
      .narrow(1, 1 - first_, length);
}

Tensor StemImpl::step(const Tensor& tokens, int64_t position, StemState& state) {
  const int64_t next = position + 1 - first_;
  const auto color = static_cast<size_t>(next % bytes_.colors);
  state.bytes = Appended(state.bytes, Values(tokens.unsqueeze(1)), bytes_.Reach() + 1);
  const Tensor in = Window(bytes_, next, next - 1, state.bytes).flatten(1);
  const Tensor features = torch::gelu(features_[color](in)).unsqueeze(1);
  // The features of byte 0, if no position computes them, are zeros.
  if (position == 0 && first_ == 0) state.features = torch::zeros_like(features);
  state.features = Appended(state.features, features, second_.Reach() + 1);
  return output_[color](Window(second_, next, next, state.features).flatten(1));
}

}  // namespace linnet::nn
