#include "linnet/runtime/mixer.h"

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

std::vector<Projection> RuntimeMixer::projections() const {
  return {{"query_projection", dim_}, {"key_projection", dim_}, {"value_projection", value_dim_}};
}

std::vector<Projection> RuntimeMixer::projections(bool memory) const {
  if (!memory) return {{"query_projection", dim_}};
  return {{"key_projection", dim_}, {"value_projection", value_dim_}};
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
