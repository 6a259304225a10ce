#include "linnet/runtime/mixer.h"

#include <algorithm>

#include "linnet/error.h"
#include "linnet/model/registry.h"

namespace linnet {

#define LINNET_MIXER(Name) RuntimeMixerRow Runtime##Name();
#include "linnet/model/mixers/list.h"

namespace {

Registry<RuntimeMixerRow>& Rows() {
#define LINNET_MIXER(Name) Runtime##Name(),
  static Registry<RuntimeMixerRow> rows("attention of the runtime", {
#include "linnet/model/mixers/list.h"
                                                                    });
  return rows;
}

[[noreturn]] void NoCross() { throw InputError("this attention does not support cross attention"); }

}  // namespace

RuntimeMixer::RuntimeMixer(const MixerSpec& spec, int together)
    : heads_(static_cast<size_t>(spec.heads / together)),
      dim_(static_cast<size_t>(spec.query_dim)),
      value_dim_(static_cast<size_t>(spec.value_dim * together)),
      out_projection_(FindMixer(spec.kind).out),
      norm_eps_(spec.output_norm_eps) {
  for (const ProjectionInfo& info : MixerProjections(spec)) {
    const int own = std::min(info.readers, together);
    projections_.push_back({info.name, static_cast<size_t>(info.width * (together / own)),
                            info.shared, static_cast<size_t>(info.readers / own),
                            static_cast<size_t>(info.blocks)});
  }
}

std::vector<Projection> RuntimeMixer::projections(bool memory) const {
  const auto first = projections_.begin();
  return memory ? std::vector(first + 1, first + 3) : std::vector(first, first + 1);
}

void RuntimeMixer::ForParts(size_t capacity, FunctionRef<void(size_t, size_t, bool)> body) const {
  body(0, state_size().Floats(capacity), false);
}

void RuntimeMixer::Remember(const MixerCall&) const { NoCross(); }
void RuntimeMixer::Recall(const MixerCall&) const { NoCross(); }

std::unique_ptr<RuntimeMixer> MakeRuntimeMixer(const MixerMake& make) {
  return Rows().Find(make.spec.kind).make(make);
}

void AddRuntimeMixer(const RuntimeMixerRow& row) { Rows().Add(row); }

}  // namespace linnet
