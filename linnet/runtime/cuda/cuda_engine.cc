#include "linnet/runtime/cuda/cuda_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/cuda/device.h"
#include "linnet/kernels/cuda/graph.h"
#include "linnet/kernels/cuda/products.h"
#include "linnet/kernels/cuda/recent_keys.h"
#include "linnet/kernels/linear_step.h"
#include "linnet/runtime/cuda/cuda_lane.h"
#include "linnet/runtime/cuda/cuda_weights.h"
#include "linnet/runtime/packed_model.h"
#include "linnet/runtime/state_data.h"

namespace linnet {
namespace {

using kernels::BFloat16;
using kernels::cuda::DecodeControl;

kernels::LinearStepShape ShapeOf(const MixerSpec& mixer, bool narrow) {
  return {.heads = static_cast<size_t>(mixer.heads),
          .dim = static_cast<size_t>(mixer.query_dim),
          .value_dim = static_cast<size_t>(mixer.value_dim),
          .narrow = narrow};
}

kernels::cuda::Device Open() {
  try {
    return kernels::cuda::Device::Open();
  } catch (const kernels::cuda::CudaError& error) {
    throw InputError(error.what());
  }
}

}  // namespace

struct CudaEngine::Impl {
  std::shared_ptr<const Model> model;
  // waiting: number of keys per sequence that are not in its sums yet (kernels/linear_step.h)
  size_t batch = 0, position = 0, waiting = 0;
  std::string device;
  CudaMemory memory;
  std::unique_ptr<CudaWeights<float>> f32;
  std::unique_ptr<CudaWeights<BFloat16>> bf16;
  std::vector<std::unique_ptr<CudaLane>> lanes;
  // Buffers for copies from and to the GPU.
  std::vector<int32_t> tokens;
  std::vector<float> floats;

  Impl(const Checkpoint& checkpoint, const CudaOptions& options)
      : model(Model::FromCheckpoint(checkpoint, {options.precision})), batch(options.batch) {
    if (batch == 0) throw InputError("the batch must be at least 1");
    if (narrow()) {
      Make(checkpoint, options, bf16);
    } else {
      Make(checkpoint, options, f32);
    }
  }

  // Whether the engine computes in bf16 instead of f32.
  bool narrow() const { return model->precision() != Precision::kF32; }
  // Number of keys that are added to the sums together.
  size_t recent_keys() const { return model->packed().layout->fold_keys; }
  // Number of bytes of an image.
  size_t pixels() const { return static_cast<size_t>(model->spec().input.max_length) + 1; }

  template <typename T>
  void Make(const Checkpoint& checkpoint, const CudaOptions& options,
            std::unique_ptr<CudaWeights<T>>& weights) {
    CudaWeights<T>::CheckRuns(*model);
    const size_t count = std::clamp<size_t>(options.lanes, 1, batch);
    // Returns the number of sequences of lane i.
    const auto of_lane = [&](size_t i) { return batch * (i + 1) / count - batch * i / count; };
    memory.weights = CudaWeights<T>::Bytes(model->spec());
    for (size_t i = 0; i < count; ++i) {
      const CudaLaneBytes bytes = LaneBytes<T>(*model, of_lane(i));
      memory.states += bytes.states, memory.work += bytes.work;
    }
    OpenDevice(options);
    weights = std::make_unique<CudaWeights<T>>(checkpoint, *model);
    for (size_t i = 0; i < count; ++i) {
      lanes.push_back(MakeLane<T>(*model, *weights, of_lane(i)));
    }
  }

  void OpenDevice(const CudaOptions& options) {
    const kernels::cuda::Device found = Open();
    device = found.name;
    if (memory.total() > found.free) {
      throw InputError(
          model->path(), ": ", options.batch, " sequences need ",
          FormatBytes(static_cast<double>(memory.total())), " of GPU memory (",
          FormatBytes(static_cast<double>(memory.states)), " of it for states), but only ",
          FormatBytes(static_cast<double>(found.free)), " of ",
          FormatBytes(static_cast<double>(found.memory)), " are free; choose a smaller batch");
    }
  }

  void SetControl(DecodeControl control) {
    control.next_position = static_cast<uint32_t>(position);
    control.next_waiting = static_cast<uint32_t>(waiting);
    control.recent_keys = static_cast<uint32_t>(recent_keys());
    const uint64_t stream = control.first_stream;
    ForLanes([&](CudaLane& lane, size_t first) {
      control.first_stream = stream + first;
      lane.SetControl(control);
    });
  }

  void Start(size_t count) {
    // Starts a few steps of each lane in turn, so that all lanes are busy from the start.
    constexpr size_t kAtOnce = 8;
    for (size_t done = 0; done < count; done += kAtOnce) {
      for (const auto& lane : lanes) lane->Start(std::min(kAtOnce, count - done));
    }
    position += count, waiting = (waiting + count) % recent_keys();
  }

  void Reset() {
    for (const auto& lane : lanes) lane->Reset();
    position = waiting = 0;
  }

  void Wait() {
    for (const auto& lane : lanes) lane->Wait();
  }

  // Calls body(lane, index of the lane's first sequence) for each lane.
  template <class Body>
  void ForLanes(Body body) {
    size_t first = 0;
    for (const auto& lane : lanes) {
      body(*lane, first);
      first += lane->batch();
    }
  }

  // Calls body(shape, floats) for each layer's part of a sequence's state.
  template <class Body>
  void ForLayers(float* state, Body body) const {
    const ModelSpec& spec = model->spec();
    for (size_t l = 0; l < static_cast<size_t>(spec.stack.layers()); ++l) {
      body(ShapeOf(spec.stack.mixer(l), narrow()), state);
      state += model->packed().layout->parts[l].Floats(0);
    }
  }
};

CudaEngine::CudaEngine(const Checkpoint& checkpoint, const CudaOptions& options)
    : impl_(std::make_unique<Impl>(checkpoint, options)) {}
CudaEngine::~CudaEngine() = default;

bool CudaEngine::Built() { return true; }
std::string CudaEngine::FindDevice() { return Open().name; }

const Model& CudaEngine::model() const { return *impl_->model; }
std::shared_ptr<const Model> CudaEngine::shared_model() const { return impl_->model; }
size_t CudaEngine::batch() const { return impl_->batch; }
size_t CudaEngine::output_size() const { return impl_->model->packed().outputs; }
const std::string& CudaEngine::device() const { return impl_->device; }
const CudaMemory& CudaEngine::memory() const { return impl_->memory; }
size_t CudaEngine::lanes() const { return impl_->lanes.size(); }
void CudaEngine::Reset() { impl_->Reset(); }
size_t CudaEngine::position() const { return impl_->position; }

void CudaEngine::Draw(std::span<uint8_t> sequences, size_t known, const ImageDraws& draws) {
  Impl& impl = *impl_;
  const size_t pixels = impl.pixels(), count = sequences.size() / pixels;
  if (count == 0 || count > impl.batch || sequences.size() % pixels != 0 || known < 1 ||
      known > pixels) {
    throw InputError(model().path(), ": cannot draw ", sequences.size(), " bytes with ", known,
                     " known bytes per sequence; pass 1 to ", impl.batch, " sequences of ", pixels,
                     " bytes, of which at least 1 is known");
  }
  if (known == pixels) return;
  impl.Reset();
  impl.SetControl({.known = static_cast<uint32_t>(known),
                   .seed = draws.seed,
                   .first_stream = draws.first_stream,
                   .temperature = draws.temperature,
                   .reference_scale = draws.reference_scale ? 1u : 0u});
  impl.ForLanes([&](CudaLane& lane, size_t first) {
    impl.tokens.assign(known * lane.batch(), 0);
    for (size_t i = 0; i < lane.batch() && first + i < count; ++i) {
      for (size_t p = 0; p < known; ++p) {
        impl.tokens[p * lane.batch() + i] = sequences[(first + i) * pixels + p];
      }
    }
    lane.WriteTokens(0, known, impl.tokens.data());
  });
  impl.Start(pixels - 1);
  impl.ForLanes([&](CudaLane& lane, size_t first) {
    impl.tokens.resize((pixels - known) * lane.batch());
    lane.ReadTokens(known, pixels - known, impl.tokens.data());
    // Transposes in blocks of positions, to stay in the cache.
    constexpr size_t kPositions = 64;
    for (size_t from = known; from < pixels; from += kPositions) {
      const size_t to = std::min(pixels, from + kPositions);
      for (size_t i = 0; i < lane.batch() && first + i < count; ++i) {
        uint8_t* sequence = sequences.data() + (first + i) * pixels;
        for (size_t p = from; p < to; ++p) {
          sequence[p] = static_cast<uint8_t>(impl.tokens[(p - known) * lane.batch() + i]);
        }
      }
    }
  });
}

void CudaEngine::Step(std::span<const int32_t> tokens, std::span<float> outputs) {
  Impl& impl = *impl_;
  const size_t width = output_size();
  if (tokens.size() != impl.batch || outputs.size() != impl.batch * width) {
    throw InputError("a step of ", impl.batch, " sequences needs one token and room for ", width,
                     " outputs per sequence");
  }
  if (impl.position + 1 >= impl.pixels()) {
    throw InputError(model().path(), ": the model has ", impl.pixels() - 1,
                     " positions, and all of them have been read");
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model().spec().input.vocabulary) {
      throw InputError("token ", token, " is outside the vocabulary 0 .. ",
                       model().spec().input.vocabulary - 1);
    }
  }
  impl.SetControl({.known = UINT32_MAX});  // draws nothing
  impl.ForLanes([&](CudaLane& lane, size_t first) {
    lane.WriteTokens(impl.position, 1, tokens.data() + first);
  });
  impl.Start(1);
  impl.ForLanes([&](CudaLane& lane, size_t first) {
    impl.floats.resize(lane.batch() * lane.output_stride());
    lane.ReadOutputs(impl.floats.data());
    for (size_t i = 0; i < lane.batch(); ++i) {
      std::copy_n(impl.floats.data() + i * lane.output_stride(), width,
                  outputs.data() + (first + i) * width);
    }
  });
}

double CudaEngine::SecondsOfStep(size_t steps) {
  Impl& impl = *impl_;
  steps = std::min(steps, impl.pixels() - 1);
  Reset();
  impl.SetControl({});
  impl.Wait();
  const auto began = std::chrono::steady_clock::now();
  impl.Start(steps);
  impl.Wait();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  Reset();
  return took.count() / static_cast<double>(steps);
}

std::vector<std::pair<std::string, double>> CudaEngine::ProfileStep() {
  Impl& impl = *impl_;
  Reset();
  impl.SetControl({});
  impl.Wait();
  CudaLane::Profile profile;
  const size_t steps = impl.recent_keys();
  for (size_t i = 0; i < steps; ++i) impl.lanes[0]->RunProfiled(profile);
  for (auto& [name, seconds] : profile) seconds /= static_cast<double>(steps);
  Reset();
  return profile;
}

double CudaEngine::StepBytes() const {
  const ModelSpec& spec = model().spec();
  // number: bytes of a number in s and in the rows of recent keys and values. rest: bytes of a
  // number in the remainder of s (kernels/linear_step.h).
  const size_t number = impl_->narrow() ? 2 : 4, rest = impl_->narrow() ? 4 : 2;
  double sequence = 0;
  for (size_t l = 0; l < static_cast<size_t>(spec.stack.layers()); ++l) {
    const kernels::LinearStepShape shape = ShapeOf(spec.stack.mixer(l), impl_->narrow());
    const double keys = static_cast<double>(shape.RecentKeys());
    const auto f = static_cast<double>(shape.dim), m = static_cast<double>(shape.value_dim);
    // A step reads the sums and the rows of recent keys and values, and writes one such row. A
    // fold, which adds these rows to the sums, also reads the sums' remainders and writes all sums.
    const double step = f * m * number + f * 4 + (f + m) * number * ((keys - 1) / 2 + 1);
    const double fold = f * m * (number + 2.0 * rest) + 3 * 4 * f;
    sequence += static_cast<double>(shape.heads) * (step + fold / keys);
  }
  return static_cast<double>(impl_->memory.weights) + sequence * static_cast<double>(impl_->batch);
}

double CudaEngine::StepOperations() const {
  const StackSpec& stack = model().spec().stack;
  // Multiplications per sequence, each with one addition.
  double sums = static_cast<double>(stack.d_model) * model().spec().OutputSize();
  for (size_t l = 0; l < static_cast<size_t>(stack.layers()); ++l) {
    const MixerSpec& mixer = stack.mixer(l);
    sums += static_cast<double>(stack.d_model) *
            (mixer.heads * (2.0 * mixer.query_dim + 2.0 * mixer.value_dim) + 2.0 * stack.d_ff);
  }
  return 2 * sums * static_cast<double>(impl_->batch);
}

CudaLimits MeasureCudaLimits(Precision precision) {
  using namespace kernels::cuda;
  CudaEngine::FindDevice();
  constexpr int kRuns = 10;
  CudaLimits limits;
  OwnStream stream;
  {
    const size_t bytes = size_t{1} << 30;
    DeviceMemory from(bytes), to(bytes);
    const auto copy = [&] { CopyOnDevice(to.data(), from.data(), bytes, stream.get()); };
    copy();
    limits.bytes_per_second =
        2.0 * static_cast<double>(bytes) / SecondsOf(copy, stream.get(), kRuns);
  }
  const bool narrow = precision != Precision::kF32;
  const size_t n = 8192, width = narrow ? 2 : 4;
  DeviceMemory x(n * n * width), w(n * n * width), bias(n * width), y(n * n * width);
  for (DeviceMemory* memory : {&x, &w, &bias}) {
    SetBytes(memory->data(), 0x3c, memory->bytes(), stream.get());  // about 0.01 in each type
  }
  Products products;
  const int plan = products.Plan(
      {.type = narrow ? ProductType::kBf16 : ProductType::kF32, .rows = n, .in = n, .out = n});
  const auto multiply = [&] {
    products.Run(plan, x.data(), w.data(), bias.data(), y.data(), stream.get());
  };
  multiply();
  limits.operations_per_second = 2.0 * static_cast<double>(n) * static_cast<double>(n) *
                                 static_cast<double>(n) / SecondsOf(multiply, stream.get(), kRuns);
  return limits;
}

void CudaEngine::SetState(const State& from_cpu) {
  Impl& impl = *impl_;
  const StateData& state = StateData::Of(from_cpu.data_);
  state.CheckFits(model());
  if (state.batch() != impl.batch) {
    throw InputError("a state of ", state.batch(), " sequences does not fit a batch of ",
                     impl.batch);
  }
  for (size_t i = 1; i < state.batch(); ++i) {
    if (state.positions[i] != state.positions[0]) {
      throw InputError("sequences at different positions (", state.positions[0], " and ",
                       state.positions[i], ") cannot step together on a GPU");
    }
    if (state.waiting[i] != state.waiting[0]) {
      throw InputError(
          "sequences that were read differently, as a prefix and in steps, cannot step "
          "together on a GPU");
    }
  }
  impl.position = state.positions[0], impl.waiting = state.waiting[0];
  // A state keeps the last `reach` tokens of a sequence, that of position t at index t % reach.
  const size_t reach = state.tokens(), from = impl.position - std::min(impl.position, reach);
  impl.ForLanes([&](CudaLane& lane, size_t first) {
    lane.WriteStates(state.data.data() + first * state.per_sequence());
    impl.tokens.resize((impl.position - from) * lane.batch());
    for (size_t t = from; t < impl.position; ++t) {
      for (size_t i = 0; i < lane.batch(); ++i) {
        impl.tokens[(t - from) * lane.batch() + i] = state.recent[(first + i) * reach + t % reach];
      }
    }
    if (!impl.tokens.empty()) {
      lane.WriteTokens(from, impl.position - from, impl.tokens.data());
    }
  });
}

State CudaEngine::GetState() {
  Impl& impl = *impl_;
  StateData state(model(), impl.batch);
  std::fill(state.positions.begin(), state.positions.end(), impl.position);
  std::fill(state.waiting.begin(), state.waiting.end(), static_cast<uint8_t>(impl.waiting));
  const size_t reach = state.tokens(), from = impl.position - std::min(impl.position, reach);
  impl.ForLanes([&](CudaLane& lane, size_t first) {
    lane.ReadStates(state.data.data() + first * state.per_sequence());
    impl.tokens.resize((impl.position - from) * lane.batch());
    if (impl.tokens.empty()) return;
    lane.ReadTokens(from, impl.position - from, impl.tokens.data());
    for (size_t t = from; t < impl.position; ++t) {
      for (size_t i = 0; i < lane.batch(); ++i) {
        state.recent[(first + i) * reach + t % reach] = impl.tokens[(t - from) * lane.batch() + i];
      }
    }
  });
  for (size_t i = 0; i < impl.batch; ++i) {
    impl.ForLayers(state.data.data() + i * state.per_sequence(),
                   [&](const kernels::LinearStepShape& shape, float* hot) {
                     kernels::cuda::SumRecentKeys(shape, impl.waiting, hot);
                   });
  }
  return State(std::move(state));
}

}  // namespace linnet
