#include "linnet/runtime/cuda/cuda_lane.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>

#include "linnet/base/aligned.h"
#include "linnet/kernels/cuda/few.h"
#include "linnet/kernels/cuda/few_sizes.h"
#include "linnet/kernels/cuda/graph.h"
#include "linnet/kernels/cuda/products.h"
#include "linnet/runtime/packed_model.h"

namespace linnet {
namespace {

using namespace kernels::cuda;
using kernels::BFloat16;

// Number of steps in the larger of a lane's two CUDA graphs; the smaller has one step. The larger
// graph saves launches by the CPU, and gaps between steps.
constexpr size_t kManySteps = 8;

// The kernels of few.h step a lane of up to this many sequences, if the model's sizes allow it.
constexpr size_t kFewSequences = 16;

// Kernels take their sizes as 32-bit numbers.
unsigned Narrowed(size_t n) { return static_cast<unsigned>(n); }

// Working memory per sequence: number of floats (and tokens, of the same size), and number of
// values of type T.
struct Widths {
  size_t floats = 0, numbers = 0;
  size_t wide = 0, merged = 0;  // columns of Lane::wide_ and Lane::merged_

  explicit Widths(const ModelSpec& spec) {
    const auto d = static_cast<size_t>(spec.stack.d_model);
    wide = static_cast<size_t>(spec.stack.d_ff);
    for (const MixerSpec& mixer : spec.stack.pattern) {
      wide = std::max(wide,
                      static_cast<size_t>(mixer.heads * (2 * mixer.query_dim + mixer.value_dim)));
      merged = std::max(merged, static_cast<size_t>(mixer.heads * mixer.value_dim));
    }
    const size_t outputs = RoundUp(static_cast<size_t>(spec.OutputSize()), 8);
    floats = 2 * d + outputs + static_cast<size_t>(spec.input.max_length) + 1;
    numbers = 2 * d + wide + merged;
  }
};

// Whether the kernels of few.h can run the model (`runs`), and the number of groups into which they
// split a feed-forward branch (`slices`) and the branch with the most groups (`most`).
template <typename T>
struct FewGroups {
  bool runs = true;
  size_t most = 0, slices = 0;

  FewGroups(const ModelSpec& spec, size_t batch) {
    const auto d = static_cast<unsigned>(spec.stack.d_model);
    const auto d_ff = static_cast<unsigned>(spec.stack.d_ff);
    most = slices = FewSlices<T>(d, d_ff);
    runs = batch <= kFewSequences;
    for (const MixerSpec& mixer : spec.stack.pattern) {
      most = std::max(most, static_cast<size_t>(mixer.heads));
      runs = runs && FewRuns<T>({.dim = static_cast<unsigned>(mixer.query_dim),
                                 .value_dim = static_cast<unsigned>(mixer.value_dim),
                                 .d_model = d,
                                 .d_ff = d_ff,
                                 .outputs = static_cast<unsigned>(spec.OutputSize()),
                                 .mixtures = static_cast<unsigned>(spec.head.mixtures)});
    }
  }
};

template <typename T>
class Lane final : public CudaLane {
 public:
  Lane(const Model& model, const CudaWeights<T>& weights, size_t batch)
      : spec_(model.spec()),
        weights_(weights),
        batch_(batch),
        d_(static_cast<size_t>(spec_.stack.d_model)),
        length_(static_cast<size_t>(spec_.input.max_length) + 1),
        state_floats_(model.packed().layout->Floats(0)),
        control_(1),
        tokens_(length_ * batch),
        states_(batch * state_floats_),
        x_(batch * d_),
        normed_(batch * d_),
        outputs_(batch * weights.head.out) {
    const FewGroups<T> groups(spec_, batch);
    if (groups.runs) {
      few_ = true, slices_ = groups.slices;
      few_x_ = DeviceBuffer<float>(2 * batch * d_);
      few_sums_ = DeviceBuffer<float>(2 * groups.most * batch * d_);
      few_branch_ = groups.most * batch * d_;
    }
    const Widths widths(spec_);
    in_ = DeviceBuffer<T>(batch * d_), branch_ = DeviceBuffer<T>(batch * d_);
    wide_ = DeviceBuffer<T>(batch * widths.wide), merged_ = DeviceBuffer<T>(batch * widths.merged);
    for (const CudaLayer<T>& layer : weights_.layers) {
      for (const auto* matrix : {&layer.project, &layer.merge, &layer.down}) Plan(*matrix, false);
      Plan(layer.up, relu());
    }
    Plan(weights_.head, false);
    // Kernels must not be loaded during a capture, so a step without a graph loads them first.
    SetControl({});
    SetBytes(tokens_.data(), 0, tokens_.size() * sizeof(int32_t), stream());
    Enqueue();
    Wait();
    one_.Capture(stream(), [&] { Enqueue(); });
    many_.Capture(stream(), [&] {
      for (size_t i = 0; i < kManySteps; ++i) Enqueue();
    });
    Reset();
  }

  size_t batch() const override { return batch_; }

  void Reset() override { SetBytes(states_.data(), 0, states_.size() * sizeof(float), stream()); }
  void SetControl(const DecodeControl& control) override {
    CopyToDevice(control_.data(), &control, sizeof(control), stream());
  }
  void WriteTokens(size_t position, size_t count, const int32_t* tokens) override {
    CopyToDevice(tokens_.data() + position * batch_, tokens, count * batch_ * sizeof(int32_t),
                 stream());
  }
  void ReadTokens(size_t position, size_t count, int32_t* tokens) override {
    CopyToHost(tokens, tokens_.data() + position * batch_, count * batch_ * sizeof(int32_t),
               stream());
  }
  size_t output_stride() const override { return weights_.head.out; }
  void ReadOutputs(float* outputs) override {
    CopyToHost(outputs, outputs_.data(), outputs_.size() * sizeof(float), stream());
  }
  void WriteStates(const float* states) override {
    CopyToDevice(states_.data(), states, states_.size() * sizeof(float), stream());
  }
  void ReadStates(float* states) override {
    CopyToHost(states, states_.data(), states_.size() * sizeof(float), stream());
  }

  void Start(size_t count) override {
    for (; count >= kManySteps; count -= kManySteps) many_.Run(stream());
    for (; count > 0; --count) one_.Run(stream());
  }
  void Wait() override { Synchronize(stream()); }

  void RunProfiled(Profile& profile) override {
    profile_ = &profile;
    Enqueue();
    profile_ = nullptr;
  }

 private:
  kernels::cuda::Stream stream() const { return stream_.get(); }
  bool first() const { return spec_.stack.norm_first; }
  bool relu() const { return spec_.stack.activation == Activation::kRelu; }

  template <typename U>
  static constexpr ProductType TypeOf() {
    return std::is_same_v<U, float> ? ProductType::kF32 : ProductType::kBf16;
  }
  template <typename U>
  auto Key(const CudaMatrix<U>& matrix, bool relu) const {
    return std::tuple(TypeOf<U>(), matrix.in, matrix.out, relu);
  }
  template <typename U>
  void Plan(const CudaMatrix<U>& matrix, bool relu) {
    const auto key = Key(matrix, relu);
    if (plans_.count(key) > 0) return;
    plans_[key] = products_.Plan(
        {.type = TypeOf<U>(), .rows = batch_, .in = matrix.in, .out = matrix.out, .relu = relu});
  }
  // Starts a kernel. While profiling, starts it several times and records its mean seconds; repeats
  // do not advance the position.
  void Do(const char* name, FunctionRef<void()> start) {
    if (profile_ == nullptr) return start();
    constexpr int kRuns = 5;
    const double seconds = SecondsOf(start, stream(), kRuns);
    const auto found = std::find_if(profile_->begin(), profile_->end(),
                                    [&](const auto& entry) { return entry.first == name; });
    if (found == profile_->end()) {
      profile_->emplace_back(name, seconds);
    } else {
      found->second += seconds;
    }
  }

  template <typename U>
  void Multiply(const char* name, const CudaMatrix<U>& matrix, const U* x, U* y,
                bool relu = false) {
    Do(name, [&] {
      products_.Run(plans_.at(Key(matrix, relu)), x, matrix.weight.data(), matrix.bias.data(), y,
                    stream());
    });
  }

  // Starts the kernels of a step.
  void Enqueue() {
    if (few_) return EnqueueFew();
    Embed();
    if (first()) Norm(nullptr, weights_.layers[0].norm1, nullptr, /*head=*/false);
    for (size_t l = 0; l < weights_.layers.size(); ++l) {
      const CudaLayer<T>& layer = weights_.layers[l];
      const bool last = l + 1 == weights_.layers.size();
      Attend(layer);
      Norm(branch_.data(), first() ? layer.norm2 : layer.norm1, nullptr, /*head=*/false);
      FeedForward(layer);
      if (first()) {
        Norm(branch_.data(), last ? weights_.final_norm : weights_.layers[l + 1].norm1, nullptr,
             last);
      } else {
        Norm(branch_.data(), layer.norm2, last ? &weights_.final_norm : nullptr, last);
      }
    }
    Multiply("product: head", weights_.head, normed_.data(), outputs_.data());
    Do("sampling", [&] { StartSample(SampleInput(), stream()); });
  }

  void Embed() {
    EmbedArgs args = EmbedInput();
    args.x = x_.data(), args.in = first() ? nullptr : in_.data();
    Do("embedding", [&] { StartEmbed<T>(args, stream()); });
  }

  void Attend(const CudaLayer<T>& layer) {
    Multiply("product: queries, keys, values", layer.project, in_.data(), wide_.data());
    DecodeStepArgs args = StepInput(layer);
    args.in = wide_.data(), args.in_stride = Narrowed(layer.project.out);
    args.out = merged_.data();
    Do("linear step", [&] { StartLinearStep<T>(args, stream()); });
    Multiply("product: heads to width", layer.merge, merged_.data(), branch_.data());
  }

  void FeedForward(const CudaLayer<T>& layer) {
    Multiply("product: feed-forward, up", layer.up, in_.data(), wide_.data(), relu());
    if (!relu()) {
      Do("gelu", [&] { StartGelu<T>(batch_ * layer.up.out, wide_.data(), stream()); });
    }
    Multiply("product: feed-forward, down", layer.down, wide_.data(), branch_.data());
  }

  // Adds a branch to the residual stream and normalizes the sum. The result is the input of the
  // next product or of the head.
  void Norm(const T* branch, const CudaNorm& norm, const CudaNorm* next, bool head) {
    Do("residual and layer norm", [&] {
      StartNorm<T>({.batch = Narrowed(batch_),
                    .d_model = Narrowed(d_),
                    .norm_first = first(),
                    .eps = spec_.stack.norm_eps,
                    .x = x_.data(),
                    .branch = branch,
                    .weight = norm.weight.data(),
                    .bias = norm.bias.data(),
                    .next_weight = next != nullptr ? next->weight.data() : nullptr,
                    .next_bias = next != nullptr ? next->bias.data() : nullptr,
                    .in = head ? nullptr : in_.data(),
                    .out = head ? normed_.data() : nullptr},
                   stream());
    });
  }

  EmbedArgs EmbedInput() const {
    const auto value_width = static_cast<unsigned>(spec_.input.value_embedding);
    return {.control = control_.data(),
            .batch = Narrowed(batch_),
            .d_model = Narrowed(d_),
            .tokens = tokens_.data(),
            .values = weights_.values.data(),
            .value_width = value_width,
            .above = spec_.input.pixel_above ? weights_.above.data() : nullptr,
            .row_tokens = static_cast<unsigned>(spec_.image()->RowBytes()),
            .vocabulary = static_cast<unsigned>(spec_.input.vocabulary),
            .positions = weights_.positions.data(),
            .position_width = static_cast<unsigned>(spec_.PositionDims()),
            .position_begin = value_width == d_ ? 0 : value_width};
  }
  DecodeStepArgs StepInput(const CudaLayer<T>& layer) const {
    return {.control = control_.data(),
            .batch = Narrowed(batch_),
            .heads = Narrowed(layer.heads),
            .dim = Narrowed(layer.dim),
            .value_dim = Narrowed(layer.value_dim),
            .eps = layer.eps,
            .states = states_.data() + layer.state_begin,
            .state_stride = state_floats_};
  }
  SampleArgs SampleInput() const {
    return {.control = control_.data(),
            .batch = Narrowed(batch_),
            .mixtures = static_cast<unsigned>(spec_.head.mixtures),
            .outputs = outputs_.data(),
            .output_stride = Narrowed(weights_.head.out),
            .tokens = tokens_.data()};
  }

  // Starts the kernels of a step, those of few.h. Branches alternate between two buffers for their
  // groups' sums, and between two buffers for their copies of the residual stream.
  void EnqueueFew() {
    FewInput<T> input{.embeds = true,
                      .embed = EmbedInput(),
                      .batch = Narrowed(batch_),
                      .d_model = Narrowed(d_),
                      .norm_first = first(),
                      .eps = spec_.stack.norm_eps};
    size_t turn = 0;
    const auto sums = [&] { return few_sums_.data() + turn * few_branch_; };
    const auto set_norm = [&](const CudaNorm& norm) {
      input.weight = norm.weight.data(), input.norm_bias = norm.bias.data();
    };
    // Passes the results of the branch just started to the next branch: the sums of its `groups`
    // groups, and the bias of its output matrix `out`.
    const auto pass = [&](size_t groups, const CudaMatrix<T>& out) {
      input.embeds = false;
      input.x = input.x_next, input.sums = sums();
      input.groups = Narrowed(groups), input.bias = out.bias.data();
      turn = 1 - turn;
    };
    for (size_t l = 0; l < weights_.layers.size(); ++l) {
      const CudaLayer<T>& layer = weights_.layers[l];
      if (first()) {
        set_norm(layer.norm1);
      } else if (l > 0) {
        set_norm(weights_.layers[l - 1].norm2);
      }
      input.x_next = few_x_.data() + turn * batch_ * d_;
      Do("attention", [&] {
        StartFewAttend<T>({.input = input,
                           .step = StepInput(layer),
                           .project = layer.project.weight.data(),
                           .project_bias = layer.project.bias.data(),
                           .merge = layer.merge.weight.data(),
                           .sums = sums()},
                          stream());
      });
      pass(layer.heads, layer.merge);
      set_norm(first() ? layer.norm2 : layer.norm1);
      input.x_next = few_x_.data() + turn * batch_ * d_;
      Do("feed-forward", [&] {
        StartFewFeedForward<T>({.input = input,
                                .d_ff = Narrowed(layer.up.out),
                                .slice = FewSlice<T>(Narrowed(d_)),
                                .gelu = !relu(),
                                .up = layer.up.weight.data(),
                                .up_bias = layer.up.bias.data(),
                                .down = layer.down.weight.data(),
                                .sums = sums()},
                               stream());
      });
      pass(slices_, layer.down);
    }
    const CudaNorm& final_norm = weights_.final_norm;
    set_norm(first() ? final_norm : weights_.layers.back().norm2);
    if (!first()) {
      input.next_weight = final_norm.weight.data(), input.next_bias = final_norm.bias.data();
    }
    input.x_next = nullptr;
    Do("head and sampling", [&] {
      StartFewHead<T>({.input = input,
                       .weight = weights_.head.weight.data(),
                       .bias = weights_.head.bias.data(),
                       .outputs = static_cast<unsigned>(spec_.OutputSize()),
                       .to = outputs_.data(),
                       .sample = SampleInput()},
                      stream());
    });
  }

  const ModelSpec& spec_;
  const CudaWeights<T>& weights_;
  const size_t batch_, d_, length_, state_floats_;
  OwnStream stream_;
  Products products_;
  // The plan in products_ of each Key(); matrices of the same shape share a plan.
  std::map<std::tuple<ProductType, size_t, size_t, bool>, int> plans_;
  DeviceBuffer<DecodeControl> control_;
  DeviceBuffer<int32_t> tokens_;   // [length_, batch_]
  DeviceBuffer<float> states_;     // [batch_, state_floats_]
  DeviceBuffer<float> x_;          // [batch_, d_], the residual stream
  DeviceBuffer<float> normed_;     // [batch_, d_], the head's input
  DeviceBuffer<float> outputs_;    // [batch_, head.out]
  DeviceBuffer<T> in_, branch_;    // [batch_, d_], a branch's input and result
  DeviceBuffer<T> wide_, merged_;  // results of first products; outputs of heads
  // few_: whether the lane uses the kernels of few.h. slices_: groups of a feed-forward branch.
  // few_branch_: floats of one of the two buffers in few_sums_.
  bool few_ = false;
  size_t slices_ = 0, few_branch_ = 0;
  DeviceBuffer<float> few_x_, few_sums_;  // [2, batch_, d_], [2, groups, batch_, d_]
  Graph one_, many_;                      // 1 step, kManySteps steps
  Profile* profile_ = nullptr;
};

}  // namespace

template <typename T>
CudaLaneBytes LaneBytes(const Model& model, size_t batch) {
  const Widths widths(model.spec());
  const FewGroups<T> groups(model.spec(), batch);
  const auto d = static_cast<size_t>(model.spec().stack.d_model);
  const size_t few = groups.runs ? 2 * (groups.most + 1) * d * sizeof(float) : 0;
  return {.states = batch * model.packed().layout->Floats(0) * sizeof(float),
          .work = batch * (widths.floats * sizeof(float) + widths.numbers * sizeof(T) + few) +
                  Products::kWorkspaceBytes};
}

template <typename T>
std::unique_ptr<CudaLane> MakeLane(const Model& model, const CudaWeights<T>& weights,
                                   size_t batch) {
  return std::make_unique<Lane<T>>(model, weights, batch);
}

template CudaLaneBytes LaneBytes<float>(const Model&, size_t);
template CudaLaneBytes LaneBytes<BFloat16>(const Model&, size_t);
template std::unique_ptr<CudaLane> MakeLane(const Model&, const CudaWeights<float>&, size_t);
template std::unique_ptr<CudaLane> MakeLane(const Model&, const CudaWeights<BFloat16>&, size_t);

}  // namespace linnet
