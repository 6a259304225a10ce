// The plain double-precision twin of the engine: the network written out over a checkpoint's tensors,
// all positions at once. For a model that runs narrow, weights and activations are rounded as the
// engine rounds them, and nothing else is.
#ifndef LINNET_RUNTIME_MODEL_REF_H_
#define LINNET_RUNTIME_MODEL_REF_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/kernels/activation_ref.h"
#include "linnet/kernels/layer_norm_ref.h"
#include "linnet/kernels/linear_step_ref.h"
#include "linnet/kernels/lsh_attention_ref.h"
#include "linnet/kernels/narrow_linear_ref.h"
#include "linnet/kernels/softmax_attention_ref.h"
#include "linnet/model/checkpoint.h"
#include "linnet/runtime/narrow.h"
#include "linnet/runtime/packed_model.h"

namespace linnet {

class ModelRef {
 public:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;  // one a position

  // `model` is the same checkpoint, as the engine has it. Both must outlive this.
  ModelRef(const Checkpoint& checkpoint, const Model& model)
      : checkpoint_(checkpoint), model_(model.packed()), spec_(checkpoint.spec()) {}

  // The head's outputs at each position, of which the first `prefix` are read at once: there narrow
  // models round no sums, unless their feature map has a floor, with which prefixes are steps too.
  Rows Outputs(const std::vector<int32_t>& tokens, size_t prefix = 0) {
    prefix_ = model_.floor > 0 ? 0 : prefix;
    Rows x = Embedded(tokens);
    for (int l = 0; l < spec_.stack.layers(); ++l) {
      const std::string layer = StrCat("transformer.layers.", l, ".");
      const auto add = [&](const Rows& part, const char* norm) {
        x = spec_.stack.norm_first ? Sum(x, part) : AddNorm(x, part, layer + norm);
      };
      const Rows read = spec_.stack.norm_first ? AddNorm(x, {}, layer + "norm1") : x;
      add(Grouped(layer + "attention.out_projection", Attended(layer + "attention.", read),
                  model_.layers[0].attention, Size(spec_.stack.mixer().value_dim)),
          "norm1");
      Rows hidden =
          Linear(layer + "linear1", spec_.stack.norm_first ? AddNorm(x, {}, layer + "norm2") : x);
      for (Row& row : hidden) {
        for (double& value : row) value = kernels::ActivationRef(model_.activation, value);
      }
      add(Grouped(layer + "linear2", hidden, model_.layers[0].feed_forward, 1), "norm2");
    }
    if (spec_.stack.final_norm) x = AddNorm(x, {}, "transformer.norm");
    return Linear("predictor", x);
  }

 private:
  static size_t Size(int n) { return static_cast<size_t>(n); }

  Row RowOf(const std::string& name, size_t row, size_t width) const {
    const auto from = checkpoint_.Tensor(name).subspan(row * width, width);
    return {from.begin(), from.end()};
  }

  Rows Embedded(const std::vector<int32_t>& tokens) const {
    Rows x;
    const size_t width = Size(spec_.input.value_embedding);
    for (size_t t = 0; t < tokens.size(); ++t) {
      x.push_back(RowOf(spec_.head.tied ? "predictor.weight" : "value_embedding.weight", Size(tokens[t]),
                        width));
      if (spec_.head.tied) {
        for (double& value : x[t]) value *= std::sqrt(static_cast<double>(spec_.stack.d_model));
      }
      if (spec_.input.pixel_above) {
        const size_t row = Size(spec_.image()->RowBytes());
        const Row above =
            RowOf("above_embedding.weight",
                  t + 1 < row ? Size(spec_.input.vocabulary) : Size(tokens[t + 1 - row]), width);
        for (size_t i = 0; i < width; ++i) x[t][i] += above[i];
      }
      if (spec_.PositionDims() > 0) {
        const Row pe = RowOf("pos_embedding.pe", t, Size(spec_.PositionDims()));
        if (spec_.input.positions == Positions::kAdded) {
          for (size_t i = 0; i < pe.size(); ++i) x[t][i] += pe[i];
        } else {
          x[t].insert(x[t].end(), pe.begin(), pe.end());
        }
      }
    }
    return x;
  }

  Rows Attended(const std::string& name, const Rows& x) {
    const size_t dim = Size(spec_.stack.mixer().query_dim), m = Size(spec_.stack.mixer().value_dim);
    const Rows q = Linear(name + "query_projection", x), k = Linear(name + "key_projection", x),
               v = Linear(name + "value_projection", x);
    Rows attended(x.size());
    for (size_t h = 0; h < Size(spec_.stack.mixer().heads); ++h) {
      const auto head = [&](const Rows& from, size_t width) {
        Row rows;
        for (const Row& row : from) {
          const auto begin = row.begin() + static_cast<ptrdiff_t>(h * width);
          rows.insert(rows.end(), begin, begin + static_cast<ptrdiff_t>(width));
        }
        return rows;
      };
      const Row q_h = head(q, dim), k_h = head(k, dim), v_h = head(v, m);
      const auto add = [&](size_t t, const Row& out) {
        attended[t].insert(attended[t].end(), out.begin(), out.end());
      };
      if (model_.lsh_rounds > 0) {
        const kernels::LshAttentionShape shape{
            .length = x.size(), .dim = dim, .value_dim = m, .rounds = model_.lsh_rounds};
        const kernels::LshAttentionRef ref(shape, model_.lsh, q_h, v_h, x.size(), Buckets(q_h));
        for (size_t t = 0; t < x.size(); ++t) {
          const auto begin = ref.Out().begin() + static_cast<ptrdiff_t>(t * m);
          add(t, {begin, begin + static_cast<ptrdiff_t>(m)});
        }
        continue;
      }
      if (model_.layout.softmax) {
        const kernels::SoftmaxAttentionRef ref({1, x.size(), x.size(), 1, dim, m},
                                               {.scale = model_.softmax_scale, .causal = true}, q_h,
                                               k_h, v_h, x.size());
        for (size_t t = 0; t < x.size(); ++t) add(t, ref.Out(t));
        continue;
      }
      const auto features = [&](const Row& from, size_t t, bool query) {
        const Row row(from.begin() + static_cast<ptrdiff_t>(t * dim),
                      from.begin() + static_cast<ptrdiff_t>((t + 1) * dim));
        if (!model_.maps()) return row;
        std::vector<float> omega;
        if (model_.omega_columns > 0) {
          const auto drawn = checkpoint_.Tensor(name + "inner_attention.feature_map.omega");
          omega.assign(drawn.begin(), drawn.end());
        }
        Row phi(model_.features);
        model_.feature_map.reference({dim, model_.omega_columns, omega.data()}, row.data(), query,
                                      phi.data());
        return phi;
      };
      const auto make = [&](bool narrow) {
        return kernels::LinearStepRef(model_.features, m, model_.attention, narrow, model_.floor);
      };
      kernels::LinearStepRef at_once = make(false), stepped = make(model_.narrow());
      Rows keys, values;
      for (size_t t = 0; t < x.size(); ++t) {
        const auto begin = v_h.begin() + static_cast<ptrdiff_t>(t * m);
        const Row value(begin, begin + static_cast<ptrdiff_t>(m)), key = features(k_h, t, false);
        if (t == prefix_) stepped.Extend(keys, values);
        if (t < prefix_) keys.push_back(key), values.push_back(value);
        add(t, (t < prefix_ ? at_once : stepped).Step(features(q_h, t, true), key, value));
      }
    }
    return attended;
  }

  // Of one head's queries, each round's.
  std::vector<std::vector<size_t>> Buckets(const Row& q) const {
    const size_t dim = Size(spec_.stack.mixer().query_dim), half = model_.lsh.buckets / 2;
    std::vector<std::vector<size_t>> buckets(model_.lsh_rounds);
    for (size_t r = 0; r < buckets.size(); ++r) {
      for (size_t t = 0; t < q.size() / dim; ++t) {
        const float* planes = model_.planes.data() + r * dim * half;
        buckets[r].push_back(kernels::LshBucketRef(&q[t * dim], planes, dim, half).bucket);
      }
    }
    return buckets;
  }

  // A matrix as it multiplies, and the factors of its inputs.
  struct Matrix {
    Row weight;
    std::vector<float> factor;
  };
  const Matrix& MatrixOf(const std::string& name) {
    const auto known = matrices_.find(name);
    if (known != matrices_.end()) return known->second;
    const auto wide = checkpoint_.Tensor(name + ".weight");
    const size_t out = checkpoint_.Tensor(name + ".bias").size(), in = wide.size() / out;
    Matrix& matrix = matrices_[name];
    matrix.weight.assign(wide.begin(), wide.end());
    if (PrecisionOf(name) == Precision::kBf16) {
      std::transform(wide.begin(), wide.end(), matrix.weight.begin(), kernels::RoundedToBFloat16);
    } else if (PrecisionOf(name) == Precision::kInt8) {
      matrix.factor = InputFactors(checkpoint_, name + ".weight");
      const Int8Matrix narrow(wide, out, matrix.factor);
      for (size_t i = 0; i < wide.size(); ++i) {
        matrix.weight[i] = double{narrow.scales[i / in]} * narrow.values[i];
      }
    }
    return matrix;
  }
  Precision PrecisionOf(const std::string& name) const {
    return name == "predictor" ? model_.predictor_precision() : model_.precision;
  }

  // Inputs [begin, end) of x, rounded together, times those columns.
  void AddProduct(const std::string& name, const Row& x, size_t begin, size_t end, Row& y) {
    const Matrix& matrix = MatrixOf(name);
    std::vector<float> part(x.begin() + static_cast<ptrdiff_t>(begin),
                            x.begin() + static_cast<ptrdiff_t>(end));
    Row rounded(x.begin() + static_cast<ptrdiff_t>(begin), x.begin() + static_cast<ptrdiff_t>(end));
    for (size_t k = 0; k < matrix.factor.size(); ++k) part[k] *= matrix.factor[k];
    if (PrecisionOf(name) == Precision::kBf16) {
      std::transform(part.begin(), part.end(), rounded.begin(), kernels::RoundedToBFloat16);
    } else if (PrecisionOf(name) == Precision::kInt8) {
      rounded = kernels::Int8RowRef(part.size(), part.data());
    }
    for (size_t o = 0; o < y.size(); ++o) {
      const double* weight = matrix.weight.data() + o * x.size() + begin;
      for (size_t k = 0; k < rounded.size(); ++k) y[o] += rounded[k] * weight[k];
    }
  }

  Rows Linear(const std::string& name, const Rows& x) {
    return Grouped(name, x, {{.begin = 0, .end = x[0].size()}}, 1);
  }
  // Over groups of inputs, each of `width` a piece.
  Rows Grouped(const std::string& name, const Rows& x, const std::vector<PackedGroup>& groups,
               size_t width) {
    const auto bias = checkpoint_.Tensor(name + ".bias");
    Rows y;
    for (const Row& row : x) {
      Row& sum = y.emplace_back(bias.begin(), bias.end());
      for (const PackedGroup& group : groups) {
        AddProduct(name, row, group.begin * width, group.end * width, sum);
      }
    }
    return y;
  }

  static Rows Sum(Rows x, const Rows& add) {
    for (size_t t = 0; t < x.size(); ++t) {
      std::transform(x[t].begin(), x[t].end(), add[t].begin(), x[t].begin(), std::plus<>());
    }
    return x;
  }

  Rows AddNorm(const Rows& x, const Rows& add, const std::string& name) const {
    Rows y = add.empty() ? x : Sum(x, add);
    for (Row& row : y) {
      row = kernels::LayerNormRef(row, checkpoint_.Tensor(name + ".weight").data(),
                                  checkpoint_.Tensor(name + ".bias").data(), spec_.stack.norm_eps);
    }
    return y;
  }

  const Checkpoint& checkpoint_;
  const Model::Packed& model_;
  const ModelSpec& spec_;
  std::map<std::string, Matrix> matrices_;
  size_t prefix_ = 0;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_MODEL_REF_H_
