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

  size_t ScratchFloats(size_t rows, size_t heads, size_t keys) const override {
    return std::max(kernels::SoftmaxAttentionScratch({1, rows, keys, heads, dim_, value_dim_}),
                    StepShape(heads, keys).ScratchFloats());
  }

 protected:
  void Attend(const Shape& shape, In q, In k, In v, kernels::Strided<float> out,
              float* scratch) const override {
    kernels::SoftmaxAttentionForward(
        {1, shape.queries, shape.keys, shape.heads, dim_, value_dim_},
        {.scale = scale_, .causal = shape.causal, .offset = shape.offset},
        {.q = q, .k = k, .v = v, .out = out}, {scratch, 1}, SerialFor);
  }

  bool Steps(const MixerCall& call) const override {
    const kernels::SoftmaxStepShape shape = StepShape(call.count(), call.block.capacity);
    const Block& block = call.block;
    kernels::SoftmaxStep(shape, block.sequences, scale_,
                         {.q = Columns(call, 0, HeadWidth(), 0),
                          .k = Columns(call, 0, HeadWidth(), dim_),
                          .v = Columns(call, 0, HeadWidth(), 2 * dim_),
                          .out = Out(call, 0),
                          .cache = call.state + block.FirstPlace() * block.state_stride +
                                   call.heads.begin * shape.HeadFloats(),
                          .cache_stride = static_cast<ptrdiff_t>(block.state_stride),
                          .positions = block.positions + block.FirstPlace(),
                          .sequences = block.chosen,
                          .scratch = call.scratch});
    return true;
  }

 private:
  kernels::SoftmaxStepShape StepShape(size_t heads, size_t capacity) const {
    return {.heads = heads, .dim = dim_, .value_dim = value_dim_, .capacity = capacity};
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
