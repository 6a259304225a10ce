#include "linnet/runtime/mixer.h"

#include <algorithm>
#include <optional>

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
    const size_t index = projections_.size();
    const int own = std::min(info.readers, together);  // joined heads that share these columns
    projections_.push_back({info.name, static_cast<size_t>(info.width * (together / own)),
                            info.shared, static_cast<size_t>(info.readers / own),
                            static_cast<size_t>(info.blocks), info.carries, info.carried});
    const auto known = std::find_if(inputs_.begin(), inputs_.end(), [&](const MixerInput& input) {
      return input.shift == info.shift && input.carried == info.carried;
    });
    MixerInput& input = known != inputs_.end() ? *known : inputs_.emplace_back();
    input.shift = info.shift, input.carried = info.carried;
    input.projections.push_back(index);
  }
}

RuntimeMixer::Columns RuntimeMixer::Place(size_t projection, size_t heads) const {
  size_t at = 0;
  for (const MixerInput& input : inputs_) {
    size_t own = 0, shared = 0;  // columns of each head, and columns that all heads share
    std::optional<Columns> found;
    for (const size_t i : input.projections) {
      const Projection& p = projections_[i];
      size_t& before = p.shared ? shared : own;
      if (i == projection) found = {before, p.shared ? size_t{0} : size_t{1}};
      before += p.width;
    }
    if (found && found->stride > 0) return {at + found->at, own};
    if (found) return {at + own * heads + found->at, 0};
    at += own * heads + shared;
  }
  return {at, 0};
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
