#include "linnet/nn/recurrence.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/nn/register_at.h"

namespace linnet::nn {

using torch::Tensor;

RecurrenceImpl::RecurrenceImpl(const MixerSpec& spec, Tensor (*initial)(const TensorInfo& info))
    : spec_(spec), projections_(MixerProjections(spec)) {
  for (const TensorInfo& info : FindMixer(spec.kind).tensors(spec)) {
    own_[info.name] = initial(info);
    RegisterAt(*this, info.name, own_[info.name]);
  }
}

Tensor RecurrenceImpl::forward(const Tensor&, const Tensor&, const Tensor&, const Mask&) {
  throw InputError("attention '", spec_.kind, "' reads ", projections_.size(),
                   " projections, not three; use Mix()");
}

Tensor RecurrenceImpl::Mix(const Parts& in, const Mask& mask) {
  CheckParts(in);
  CheckAttention(spec_.kind.c_str(), Plain(in, 0), Plain(in, 1), Plain(in, 2), mask,
                 /*quadratic=*/false, spec_.query_dim);
  if (in[0].size(1) != in[1].size(1)) {
    throw InputError("attention '", spec_.kind, "' needs as many keys as queries; got ",
                     in[1].size(1), " and ", in[0].size(1));
  }
  Parts seen;
  for (const Tensor& part : in) {
    seen.push_back(part.dim() == 4 ? DropBehind(part, mask.lengths)
                                   : DropBehind(part.unsqueeze(2), mask.lengths).squeeze(2));
  }
  const Tensor lengths = mask.lengths.defined() ? mask.lengths.contiguous() : Tensor();
  return DropQueries(DropBehind(Compute(seen, lengths, nullptr), mask.lengths), mask);
}

Tensor RecurrenceImpl::MixPiece(const Parts& in, MixerState& state) {
  CheckParts(in);
  CheckRecurrent(spec_.kind.c_str(), spec_.query_dim, Plain(in, 0), Plain(in, 1), Plain(in, 2), {},
                 state.empty() ? Tensor() : state.tensors[0]);
  return Compute(in, {}, &state);
}

Tensor RecurrenceImpl::MixStep(const Parts& in, MixerState& state) {
  Parts rows;
  for (const Tensor& part : in) rows.push_back(part.unsqueeze(1));
  return MixPiece(rows, state).squeeze(1);
}

// Checks the number and the shapes of the projections. CheckAttention() compares queries, keys and
// values with each other.
void RecurrenceImpl::CheckParts(const Parts& in) const {
  if (in.size() != projections_.size()) {
    throw InputError("attention '", spec_.kind, "' reads ", projections_.size(),
                     " projections; got ", in.size());
  }
  for (size_t i = 0; i < in.size(); ++i) {
    const ProjectionInfo& info = projections_[i];
    const bool fits = in[i].dim() == (info.shared ? 3 : 4) && in[i].size(-1) == info.width &&
                      (info.shared || in[i].size(2) == spec_.heads / info.readers) &&
                      (i < 3 || (in[i].size(0) == in[0].size(0) && in[i].size(1) == in[1].size(1)));
    if (!fits) {
      throw InputError("attention '", spec_.kind, "': ", info.name, " has ", in[i].sizes(),
                       "; it must be [N, L, ",
                       info.shared ? "" : StrCat(spec_.heads / info.readers, ", "), info.width,
                       "], with N and L of the queries ", in[0].sizes());
    }
  }
}

Tensor RecurrenceImpl::Plain(const Parts& in, size_t which) const {
  const ProjectionInfo& info = projections_[which];
  const Tensor x = info.blocks == 1 ? in[which] : in[which].narrow(3, 0, info.width / info.blocks);
  return info.readers == 1 ? x : x.repeat_interleave(info.readers, 2);
}

Tensor RecurrenceImpl::Wide(const Tensor& x) {
  const auto type = x.scalar_type();
  return type == torch::kBFloat16 || type == torch::kHalf ? x.to(torch::kFloat32) : x;
}

Tensor RecurrenceImpl::Part(const Parts& in, const std::string& name) const {
  for (size_t i = 0; i < projections_.size(); ++i) {
    if (projections_[i].name == name) return Wide(in[i]);
  }
  return {};
}

}  // namespace linnet::nn
