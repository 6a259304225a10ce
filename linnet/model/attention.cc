#include "linnet/model/attention.h"

#include <mutex>

#include "linnet/base/error.h"
#include "linnet/base/rng.h"
#include "linnet/io/json.h"

namespace linnet {
namespace {

// Entries with a name. Others may add to them while a program starts, from any thread.
template <typename Info>
class Table {
 public:
  Table(const char* what, std::vector<Info> entries) : what_(what), entries_(std::move(entries)) {}

  std::vector<Info> all() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }

  Info Find(const std::string& name) const {
    std::string known;
    for (const Info& info : all()) {
      if (name == info.name) return info;
      known += (known.empty() ? "" : ", ") + info.name;
    }
    throw InputError("unknown ", what_, " ", Quote(name), "; choose one of ", known);
  }

  void Add(const Info& info) {
    const std::lock_guard lock(mutex_);
    for (const Info& entry : entries_) {
      if (entry.name == info.name) {
        throw InputError("there is a ", what_, " ", Quote(info.name), " already");
      }
    }
    entries_.push_back(info);
  }

 private:
  const char* const what_;
  mutable std::mutex mutex_;
  std::vector<Info> entries_;
};

Table<AttentionKindInfo>& Kinds() {
  static Table<AttentionKindInfo> table(
      "attention",
      {
          {"causal-linear", "linear attention over the past; runs as an RNN (eqs. 8-15)", true,
           true, true},
          {"linear", "linear attention over the whole sequence (eqs. 4-6)", false, false, true},
          {"full", "softmax attention (eq. 2); runs over a cache of keys and values", true, true},
          {"kernel", "equation 3 as it stands, quadratic, with a similarity of choice", true,
           false},
          {"reformer", "softmax over the keys that hashing finds near (LSH)", true, false},
      });
  return table;
}

int64_t SameSize(int query_dim, int) { return query_dim; }
int64_t AsAsked(int query_dim, int features) { return features > 0 ? features : 2 * query_dim; }

Table<FeatureMapInfo>& Maps() {
  static Table<FeatureMapInfo> table(
      "feature map",
      {
          {"elu", "elu(x) + 1 (eq. 7)", true, SameSize},
          {"relu", "max(x, 0)", true, SameSize},
          {"polynomial2", "exactly (q k / sqrt(D) + 1)^2", true,
           [](int d, int) { return int64_t{d} * (d + 1) / 2 + d + 1; }},
          {"rff", "random Fourier features, near exp(-|q - k|^2 / (2 sqrt(D)))", true, AsAsked,
           [](int d, int features) { return AsAsked(d, features) / 2; }},
          {"favor", "positive random features, near exp(q k / sqrt(D)): softmax attention", true,
           AsAsked, AsAsked},
      });
  return table;
}

}  // namespace

std::vector<AttentionKindInfo> AttentionKinds() { return Kinds().all(); }
AttentionKindInfo FindAttentionKind(const std::string& name) { return Kinds().Find(name); }
void AddAttentionKind(const AttentionKindInfo& info) { Kinds().Add(info); }

std::vector<FeatureMapInfo> FeatureMaps() { return Maps().all(); }
FeatureMapInfo FindFeatureMap(const std::string& name) { return Maps().Find(name); }
void AddFeatureMap(const FeatureMapInfo& info) {
  FeatureMapInfo whole = info;
  if (whole.size == nullptr) whole.size = SameSize;
  Maps().Add(whole);
}

int64_t FeatureSize(const AttentionSpec& spec, int query_dim) {
  return FindFeatureMap(spec.feature_map).size(query_dim, spec.features);
}

int64_t OmegaColumns(const AttentionSpec& spec, int query_dim) {
  const FeatureMapInfo map = FindFeatureMap(spec.feature_map);
  return map.omega == nullptr ? 0 : map.omega(query_dim, spec.features);
}

void ValidateFeatureMap(const AttentionSpec& spec, int64_t query_dim, const std::string& where) {
  const auto require = [&](bool good, const auto&... message) {
    if (!good) throw InputError(where, ": ", message...);
  };
  constexpr int64_t kMost = 1 << 20;
  require(query_dim >= 1 && query_dim <= kMost, "query_dim is ", query_dim,
          "; it must be between 1 and ", kMost);
  try {
    FindFeatureMap(spec.feature_map);
  } catch (const Error& error) {
    throw InputError(where, ": ", error.what());
  }
  require(spec.features >= 0 && spec.features <= 1 << 16, "features is ", spec.features,
          "; it must be between 0 and ", 1 << 16);
  require(spec.feature_map != "rff" || spec.features % 2 == 0, "features is ", spec.features,
          "; rff needs an even number of them");
  const int64_t size = FeatureSize(spec, static_cast<int>(query_dim));
  require(size <= kMost, "feature map '", spec.feature_map, "' makes ", size, " features of ",
          query_dim, " dimensions; at most ", kMost, " can be");
}

void Validate(const AttentionSpec& spec, int query_dim, const std::string& where) {
  const auto require = [&](bool good, const auto&... message) {
    if (!good) throw InputError(where, ": ", message...);
  };
  const auto in_range = [&](const char* name, int value, int low, int high) {
    require(value >= low && value <= high, name, " is ", value, "; it must be between ", low,
            " and ", high);
  };
  try {
    FindAttentionKind(spec.kind);
  } catch (const Error& error) {
    throw InputError(where, ": ", error.what());
  }
  require(spec.eps >= 0 && spec.eps < 1, "attention_eps is ", spec.eps, "; it must lie in [0, 1)");
  ValidateFeatureMap(spec, query_dim, where);
  require(
      spec.similarity == "softmax" || spec.similarity == "polynomial2" || spec.similarity == "rbf",
      "unknown similarity ", Quote(spec.similarity), "; choose softmax, polynomial2 or rbf");
  in_range("lsh_rounds", spec.lsh_rounds, 1, 64);
  in_range("lsh_buckets", spec.lsh_buckets, 1, 1 << 16);
  require(spec.lsh_buckets == 1 || spec.lsh_buckets % 2 == 0, "lsh_buckets is ", spec.lsh_buckets,
          "; it must be 1 or even");
  in_range("lsh_chunk", spec.lsh_chunk, 1, 1 << 20);
  require(spec.lsh_variant == "published" || spec.lsh_variant == "simple", "unknown lsh_variant ",
          Quote(spec.lsh_variant), "; choose published or simple");
}

std::vector<float> LshPlanes(const AttentionSpec& spec, int query_dim) {
  std::vector<float> planes(static_cast<size_t>(spec.lsh_rounds) * static_cast<size_t>(query_dim) *
                            static_cast<size_t>((spec.lsh_buckets + 1) / 2));
  Philox rng(/*seed=*/1);
  for (float& number : planes) number = rng.Normal();
  return planes;
}

}  // namespace linnet
