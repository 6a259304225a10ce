// For tests: the causal stem of images in plain loops, by the definition of StemSpec.
//
//   StemRef(spec, tokens, product)   // [positions][d_model]
#ifndef LINNET_MODEL_STEM_REF_H_
#define LINNET_MODEL_STEM_REF_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/spec.h"

namespace linnet {

// product(name, x): name.weight x + name.bias.
using StemProduct =
    std::function<std::vector<double>(const std::string&, const std::vector<double>&)>;

inline std::vector<std::vector<double>> StemRef(const ModelSpec& spec,
                                                const std::vector<int32_t>& tokens,
                                                const StemProduct& product) {
  const StemSpec& stem = spec.input.stem;
  const bool pixels = spec.input.whole_pixels;
  const int width = spec.image()->width, colors = pixels ? 1 : spec.image()->channels;
  const auto channels = static_cast<size_t>(stem.channels);
  // features[n] is h[n] of StemSpec; h[0] of bytes is zeros.
  std::vector<std::vector<double>> features, out;
  if (!pixels) features.emplace_back(channels);
  for (size_t t = 0; t < tokens.size(); ++t) {
    const int n = static_cast<int>(t) + (pixels ? 0 : 1);
    const int k = n % colors, x = n / colors % width, y = n / colors / width;
    const auto at = [&](int row, int column, int color) {
      return (row * width + column) * colors + color;
    };
    std::vector<double> bytes, window;
    for (int row = y - stem.rows + 1; row <= y; ++row) {
      for (int column = x - stem.columns / 2; column <= x + stem.columns / 2; ++column) {
        for (int color = 0; color < colors; ++color) {
          if (row == y && (column > x || (column == x && color >= k))) continue;
          const bool inside = row >= 0 && column >= 0 && column < width;
          if (pixels) {
            const int token = inside ? tokens[static_cast<size_t>(at(row, column, 0)) + 1] : 0;
            for (const int byte : {token / 65536, token / 256 % 256, token % 256}) {
              bytes.push_back(inside ? byte / 128.0 - 1 : 0);
            }
            continue;
          }
          bytes.push_back(inside ? tokens[static_cast<size_t>(at(row, column, color))] / 128.0 - 1
                                 : 0);
        }
      }
    }
    std::vector<double>& own = features.emplace_back(product(StrCat("stem.features.", k), bytes));
    for (double& value : own) value *= std::erfc(-value / std::sqrt(2.0)) / 2;  // gelu
    for (int row = y - stem.second_rows + 1; row <= y; ++row) {
      for (int column = x - stem.second_columns / 2; column <= x + stem.second_columns / 2;
           ++column) {
        if (row == y && column > x) continue;
        const bool inside = row >= 0 && column >= 0 && column < width;
        const std::vector<double> none(channels);
        const std::vector<double>& one =
            inside ? features[static_cast<size_t>(at(row, column, k))] : none;
        window.insert(window.end(), one.begin(), one.end());
      }
    }
    out.push_back(product(StrCat("stem.output.", k), window));
  }
  return out;
}

}  // namespace linnet

#endif  // LINNET_MODEL_STEM_REF_H_
