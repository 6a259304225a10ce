// Linear attention: causal with a state (steps use kernels/linear_step.h, prefixes the chunked
// kernel, kernels/causal_linear.h), over whole sequences, and over an encoder's memory.
#include <algorithm>
#include <cmath>

#include "linnet/base/aligned.h"
#include "linnet/base/parallel.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/linear_attention.h"
#include "linnet/runtime/mixer.h"

namespace linnet {
namespace {

using kernels::Strided;

class LinearMixer : public RuntimeMixer {
 public:
  explicit LinearMixer(const MixerMake& make)
      : RuntimeMixer(make.spec),
        causal_(FindMixer(make.spec.kind).always_causal),
        cross_(make.cross) {
    const FeatureMapInfo map = FindFeatureMap(make.spec.feature_map);
    if (!map.fused && map.single == nullptr) {
      throw InputError("the feature map '", map.name, "' does not run outside training");
    }
    if (!map.fused) {
      single_ = map.single;
      const std::span<const float> omega =
          map.omega ? make.tensor("inner_attention.feature_map.omega") : std::span<const float>();
      omega_ = AlignedBuffer<float>(omega.size());
      std::copy(omega.begin(), omega.end(), omega_.begin());
      input_ = {dim_, omega.size() / dim_, omega_.data()};
    }
    features_ = static_cast<size_t>(FeatureSize(make.spec, make.spec.query_dim));
    if (map.floor) floor_ = 1 / std::sqrt(static_cast<float>(features_));
    options_ = {single_ ? kernels::FeatureMap::kIdentity : kernels::FeatureMap::kElu,
                /*normalize=*/true, make.spec.eps};
    shape_ = {.heads = heads_,
              .dim = features_,
              .value_dim = value_dim_,
              .narrow = make.precision != Precision::kF32};
  }

  MixerStateSize state_size() const override {
    // Cross attention needs only the memory's sums, in the layout of the whole-sequence kernels.
    if (cross_) return {.fixed = RoundUp(heads_ * features_ * (value_dim_ + 1), kAlign)};
    if (!causal_) return {};
    return {.fixed = shape_.HotFloats() + shape_.ColdFloats()};
  }
  bool folds() const override { return causal_ && !cross_; }

  void ForParts(size_t, FunctionRef<void(size_t, size_t, bool)> body) const override {
    if (!folds()) return body(0, state_size().fixed, false);
    // The parts of LinearStepShape: s, z and rows in `hot`, the remainders of z and s in `cold`.
    const size_t z = shape_.HotZ(), rows = shape_.HotRows(), hot = shape_.HotFloats();
    const size_t rest = shape_.ColdSums(), cold = shape_.ColdFloats();
    body(0, z, shape_.narrow);
    body(z, rows - z, false);
    body(rows, hot - rows, shape_.narrow);
    body(hot, rest, false);
    body(hot + rest, cold - rest, !shape_.narrow);
  }

  size_t ScratchFloats(size_t rows, size_t heads, size_t) const override {
    const size_t chunked = std::max(
        kernels::CausalLinearScratch({1, rows, heads, features_, value_dim_}),
        causal_ ? 0
                : kernels::LinearAttentionScratch({1, rows, rows, heads, features_, value_dim_}));
    return Features(rows, heads) + Sums(heads) +
           std::max({shape_.ScratchFloats(), chunked, Zeros(heads)});
  }

  void Run(const MixerCall& call) const override {
    const Pieces pieces = Cut(call);
    const Inputs in = Mapped(call, HeadWidth(), /*key=*/dim_, /*value=*/2 * dim_, pieces);
    if (call.state == nullptr) return Whole(call, in, pieces);
    float *hot = call.state, *cold = hot + shape_.HotFloats();
    const size_t first = call.block.FirstPlace() * call.block.state_stride;
    if (call.block.step) {
      return Step(call, in, 0, call.block.sequences, hot + first, cold + first,
                  call.block.waiting + call.block.FirstPlace(), call.block.chosen, pieces);
    }
    for (size_t i = 0; i < call.block.sequences; ++i) {
      const size_t at = call.block.Place(i) * call.block.state_stride;
      const size_t row = call.block.Row(i), length = call.block.Length(i);
      if (call.block.ahead == 0) {  // later blocks of a call find no waiting keys
        kernels::LinearFold(shape_, call.heads, hot + at, cold + at,
                            call.block.waiting[call.block.Place(i)]);
      }
      if (floor_ > 0) {
        Steps(call, in, row, length, hot + at, cold + at, pieces);
      } else {
        Extend(call, in, row, length, hot + at, cold + at, pieces);
      }
    }
  }

  // Computes the sums over the memory: the causal kernel's state after the last position.
  void Remember(const MixerCall& call) const override {
    const Pieces pieces = Cut(call);
    const Inputs in = Mapped(call, dim_ + value_dim_, /*key=*/0, /*value=*/dim_, pieces);
    auto [s, z] = Memory(call, 0);
    // Only s and z are needed: the keys stand in for queries, and the output is not read.
    kernels::CausalLinearForward(
        {1, call.block.rows(), call.count(), features_, value_dim_}, options_,
        {.q = in.k, .k = in.k, .v = in.v, .out = Out(call, 0), .s = s, .z = z}, {pieces.kernel, 1},
        SerialFor);
  }

  // Runs the causal kernel from the memory's sums. The keys that it adds are zeros, which leave the
  // sums unchanged bit for bit.
  void Recall(const MixerCall& call) const override {
    const Pieces pieces = Cut(call);
    const Inputs in = Mapped(call, dim_, SIZE_MAX, SIZE_MAX, pieces);
    kernels::CausalLinearOptions identity = Product(options_);
    identity.feature_map = kernels::FeatureMap::kIdentity;
    const size_t zeros = Zeros(call.count());
    std::fill_n(pieces.zeros, zeros, 0.0f);
    const Strided<const float> nothing{pieces.zeros, 0, 0, 0};
    for (size_t i = 0; i < call.block.sequences; ++i) {
      auto [s, z] = Memory(call, i);
      const size_t row = call.block.Row(i);
      Strided<const float> q = in.q;
      q.data += static_cast<ptrdiff_t>(row) * q.time;
      kernels::CausalLinearForward(
          {1, call.block.Length(i), call.count(), features_, value_dim_}, identity,
          {.q = q, .k = nothing, .v = nothing, .out = Out(call, row), .s = s, .z = z},
          {pieces.kernel, 1}, SerialFor);
      for (size_t j = 0; floor_ > 0 && j < call.block.Length(i) * call.count(); ++j) {
        const size_t t = j / call.count(), h = j % call.count();
        Divide(q.At(0, t, h), z + h * features_, Out(call, row).At(0, t, h));
      }
    }
  }

 private:
  // The parts of the scratch memory.
  struct Pieces {
    float* features;  // [rows, heads, 2 F]: phi(q) and phi(k)
    float* sums;      // s [heads, F, M] and z [heads, F]
    float* zeros;     // zero keys and values for Recall()
    float* kernel;
  };
  // phi(q), phi(k) and v of all rows; q and k instead if the kernels apply the map themselves
  // (fused).
  struct Inputs {
    Strided<const float> q, k, v;
  };

  size_t Features(size_t rows, size_t heads) const {
    return single_ || cross_ ? RoundUp(rows * heads * 2 * features_, kAlign) : 0;
  }
  size_t Sums(size_t heads) const {
    return RoundUp(heads * features_ * (value_dim_ + 1), kAlign) + Zeros(heads);
  }
  size_t Zeros(size_t) const { return cross_ ? RoundUp(features_ + value_dim_, kAlign) : 0; }

  Pieces Cut(const MixerCall& call) const {
    Pieces pieces{};
    pieces.features = call.scratch;
    pieces.zeros = pieces.features + Features(call.block.rows(), call.count());
    pieces.sums = pieces.zeros + Zeros(call.count());
    pieces.kernel = pieces.zeros + Sums(call.count());
    return pieces;
  }

  // Applies the feature map. A head has `head` columns, with its key at offset `key` and its value
  // at offset `value`. key = 0: there are no queries; key = SIZE_MAX: there are only queries.
  Inputs Mapped(const MixerCall& call, size_t head, size_t key, size_t value,
                const Pieces& pieces) const {
    const bool queries = key != 0, keys = key != SIZE_MAX;
    Inputs in{Rows(call.in, 0, call.in_width, head),
              Rows(call.in + (keys ? key : 0), 0, call.in_width, head),
              Rows(call.in + (keys ? value : 0), 0, call.in_width, head)};
    // Recall() runs the kernel with the identity map, so queries are mapped here even if the map is
    // fused.
    const bool fused = single_ == nullptr;
    if (fused && keys) return in;
    const size_t f = features_, width = call.count() * 2 * f;
    for (size_t i = 0; i < call.block.rows() * call.count(); ++i) {
      const float* from = call.in + i / call.count() * call.in_width + i % call.count() * head;
      float* to = pieces.features + i * 2 * f;
      if (fused) {
        for (size_t d = 0; d < f; ++d) to[d] = from[d] > 0 ? from[d] + 1 : std::exp(from[d]);
        continue;
      }
      if (queries) single_(input_, from, /*query=*/true, to);
      if (keys) single_(input_, from + key, /*query=*/false, to + f);
    }
    in.q = Rows(pieces.features, 0, width, 2 * f);
    in.k = Rows(pieces.features + f, 0, width, 2 * f);
    return in;
  }
  static Strided<const float> From(Strided<const float> rows, size_t row) {
    rows.data += static_cast<ptrdiff_t>(row) * rows.time;
    return rows;
  }

  std::pair<float*, float*> Memory(const MixerCall& call, size_t sequence) const {
    float* s = call.StateOf(sequence);
    float* z = s + heads_ * features_ * value_dim_;
    return {s + call.heads.begin * features_ * value_dim_, z + call.heads.begin * features_};
  }

  void Whole(const MixerCall& call, const Inputs& in, const Pieces& pieces) const {
    const size_t count = call.count();
    for (size_t i = 0; i < call.block.sequences; ++i) {
      const size_t row = call.block.Row(i), length = call.block.Length(i);
      const Strided<const float> q = From(in.q, row), k = From(in.k, row), v = From(in.v, row);
      if (causal_) {
        float* s = pieces.sums;
        float* z = s + count * features_ * value_dim_;
        std::fill(s, z + count * features_, 0.0f);
        kernels::CausalLinearForward(
            {1, length, count, features_, value_dim_}, Product(options_),
            {.q = q, .k = k, .v = v, .out = Out(call, row), .s = s, .z = z}, {pieces.kernel, 1},
            SerialFor);
      } else {
        kernels::LinearAttentionForward(
            {1, length, length, count, features_, value_dim_}, Product(options_),
            {.q = q, .k = k, .v = v, .out = Out(call, row)}, {pieces.kernel, 1}, SerialFor);
      }
      if (floor_ > 0) DivideByKeys(call, q, k, row, length, pieces.sums);
    }
  }

  // Options for the chunked and whole-sequence kernels. They do not support a lower bound of the
  // denominator (floor_), so if there is one, they compute only the numerators.
  kernels::CausalLinearOptions Product(kernels::CausalLinearOptions options) const {
    if (floor_ > 0) options.normalize = false;
    return options;
  }

  // Divides numerators by max(phi(q) . z, floor |z|), where z [F] is the sum of the features of the
  // query's visible keys.
  void DivideByKeys(const MixerCall& call, Strided<const float> q, Strided<const float> k,
                    size_t row, size_t length, float* z) const {
    const Strided<float> out = Out(call, row);
    const auto add = [&](const float* key) {
      for (size_t f = 0; f < features_; ++f) z[f] += key[f];
    };
    for (size_t h = 0; h < call.count(); ++h) {
      std::fill_n(z, features_, 0.0f);
      for (size_t t = 0; !causal_ && t < length; ++t) add(k.At(0, t, h));
      for (size_t t = 0; t < length; ++t) {
        if (causal_) add(k.At(0, t, h));
        Divide(q.At(0, t, h), z, out.At(0, t, h));
      }
    }
  }
  void Divide(const float* q, const float* z, float* out) const {
    float product = 0, squares = 0;
    for (size_t f = 0; f < features_; ++f) product += q[f] * z[f], squares += z[f] * z[f];
    const float denominator = std::max(product, floor_ * std::sqrt(squares));
    for (size_t m = 0; m < value_dim_; ++m) out[m] = denominator > 0 ? out[m] / denominator : 0;
  }

  // Reads one position of `batch` sequences.
  void Step(const MixerCall& call, const Inputs& in, size_t row, size_t batch, float* hot,
            float* cold, const uint8_t* recent, const size_t* sequences,
            const Pieces& pieces) const {
    kernels::LinearStep(shape_, batch, options_,
                        {.heads = call.heads,
                         .q = From(in.q, row),
                         .k = From(in.k, row),
                         .v = From(in.v, row),
                         .out = Out(call, row),
                         .hot = hot,
                         .cold = cold,
                         .state_stride = static_cast<ptrdiff_t>(call.block.state_stride),
                         .recent = recent,
                         .sequences = sequences,
                         .scratch = pieces.kernel,
                         .floor = floor_});
  }

  // Reads positions of one sequence in steps, because the chunked kernel does not support a floor.
  void Steps(const MixerCall& call, const Inputs& in, size_t row, size_t length, float* hot,
             float* cold, const Pieces& pieces) const {
    uint8_t recent = 0;
    for (size_t t = 0; t < length; ++t) {
      Step(call, in, row + t, 1, hot, cold, &recent, nullptr, pieces);
      recent = shape_.NextRecent(recent);
    }
    kernels::LinearFold(shape_, call.heads, hot, cold, recent);
  }

  // Reads positions of one sequence with the chunked kernel.
  void Extend(const MixerCall& call, const Inputs& in, size_t row, size_t length, float* hot,
              float* cold, const Pieces& pieces) const {
    float* s = pieces.sums;
    float* z = s + call.count() * features_ * value_dim_;
    const Strided<const float> k = From(in.k, row), v = From(in.v, row);
    kernels::LinearSums(shape_, call.heads, hot, cold, s, z);
    kernels::CausalLinearForward(
        {1, length, call.count(), features_, value_dim_}, options_,
        {.q = From(in.q, row), .k = k, .v = v, .out = Out(call, row), .s = s, .z = z},
        {pieces.kernel, 1}, SerialFor);
    kernels::LinearExtend(shape_, call.heads, options_.feature_map, length, k, v, hot, cold);
  }

  const bool causal_, cross_;
  // Applies the feature map to one row; null: the kernels apply it (fused).
  void (*single_)(const FeatureInput&, const float*, bool, float*) = nullptr;
  FeatureInput input_;
  AlignedBuffer<float> omega_;
  size_t features_ = 0;
  float floor_ = 0;  // lower bound of phi(q) . z, in units of |z|; 0: none
  kernels::CausalLinearOptions options_;
  kernels::LinearStepShape shape_;
};

std::unique_ptr<RuntimeMixer> Make(const MixerMake& make) {
  return std::make_unique<LinearMixer>(make);
}

}  // namespace

RuntimeMixerRow RuntimeLinear() { return {"linear", Make}; }
RuntimeMixerRow RuntimeCausalLinear() { return {"causal-linear", Make}; }

}  // namespace linnet
