#include "linnet/nn/attention.h"

#include "linnet/base/error.h"

namespace linnet::nn {
namespace {

const AttentionKind& Find(const std::string& name) {
  static const AttentionKind* const kinds[] = {&kFullAttention, &kLinearAttention,
                                               &kCausalLinearAttention};
  FindAttentionKind(name);  // a message that lists the kinds
  for (const AttentionKind* kind : kinds) {
    if (name == kind->name) return *kind;
  }
  throw InputError("attention '", name, "' is known but not built");
}

}  // namespace

Attention MakeAttention(const AttentionSpec& spec) { return Find(spec.kind).make(spec); }

RecurrentAttention MakeRecurrentAttention(const AttentionSpec& spec) {
  const AttentionKind& kind = Find(spec.kind);
  if (kind.make_recurrent == nullptr) {
    throw InputError("attention '", spec.kind, "' has no recurrent form");
  }
  return kind.make_recurrent(spec);
}

bool HasRecurrentForm(const AttentionSpec& spec) {
  return Find(spec.kind).make_recurrent != nullptr;
}

}  // namespace linnet::nn
