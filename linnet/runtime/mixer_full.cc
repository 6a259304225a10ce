// Softmax attention.
#include "linnet/base/parallel.h"
#include "linnet/kernels/softmax_attention.h"
#include "linnet/kernels/softmax_step.h"
#include "linnet/runtime/mixer_cache.h"

namespace linnet {
namespace {

class FullMixer : public CacheMixer {
 public:
  explicit FullMixer(const MixerMake& make) : CacheMixer(make), scale_(SoftmaxScale(make.spec)) {}

 protected:
  size_t AttendScratch(size_t rows, size_t keys) const override {
    return std::max(kernels::SoftmaxAttentionScratch(ShapeOf(rows, keys)),
                    StepShape(keys).ScratchFloats());
  }

  void Attend(const Shape& shape, In q, In k, In v, kernels::Strided<float> out,
              float* scratch) const override {
    kernels::SoftmaxAttentionForward(
        ShapeOf(shape.queries, shape.keys),
        {.scale = scale_, .causal = shape.causal, .offset = shape.offset, .window = window_},
        {.q = q, .k = k, .v = v, .out = out}, {scratch, 1}, SerialFor);
  }

  bool Steps(const MixerCall& call, const Inputs& in, float* scratch) const override {
    const Block& block = call.block;
    const size_t capacity = window_ > 0 ? window_ : block.capacity;
    for (size_t h = 0; h < call.count(); ++h) {
      kernels::SoftmaxStep(StepShape(capacity), block.sequences, scale_,
                           {.q = in.Queries(0, h),
                            .k = in.Keys(0, h),
                            .v = in.Values(0, h),
                            .out = OutOf(call, 0, h),
                            .cache = call.state + block.FirstPlace() * block.state_stride +
                                     (call.heads.begin + h) * HeadFloats(capacity),
                            .cache_stride = static_cast<ptrdiff_t>(block.state_stride),
                            .positions = block.positions + block.FirstPlace(),
                            .sequences = block.chosen,
                            .scratch = scratch});
    }
    return true;
  }

 private:
  // Kernel shapes for the query heads that share one head of keys and values.
  kernels::SoftmaxAttentionShape ShapeOf(size_t queries, size_t keys) const {
    return {1, queries, keys, readers_, dim_, width_, readers_};
  }
  kernels::SoftmaxStepShape StepShape(size_t capacity) const {
    return {.heads = readers_,
            .dim = dim_,
            .value_dim = width_,
            .capacity = capacity,
            .readers = readers_};
  }

  const float scale_;
};

}  // namespace

RuntimeMixerRow RuntimeFull() {
  return {"full", [](const MixerMake& make) -> std::unique_ptr<RuntimeMixer> {
            return std::make_unique<FullMixer>(make);
          }};
}

}  // namespace linnet
