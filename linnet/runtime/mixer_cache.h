// Base class of mixers that cache all past keys and values (private to linnet/runtime).
#ifndef LINNET_RUNTIME_MIXER_CACHE_H_
#define LINNET_RUNTIME_MIXER_CACHE_H_

#include <algorithm>
#include <cstring>

#include "linnet/runtime/mixer.h"

namespace linnet {

// Appends keys and values to the caches. A derived class defines the attention.
class CacheMixer : public RuntimeMixer {
 public:
  explicit CacheMixer(const MixerMake& make)
      : RuntimeMixer(make.spec), causal_(make.causal), memory_(make.cross ? make.memory : 0) {}

  MixerStateSize state_size() const override {
    // A memory's cache has a fixed size: that of the longest memory.
    if (memory_ > 0) return {.fixed = (heads_ * memory_ * (dim_ + value_dim_) + 15) / 16 * 16};
    if (!causal_) return {};
    return {.heads = heads_, .dim = dim_, .value_dim = value_dim_};
  }

  void Run(const MixerCall& call) const override {
    if (call.state == nullptr) return Whole(call);
    if (call.block.step && Steps(call)) return;
    for (size_t i = 0; i < call.block.sequences; ++i) {
      const size_t before = call.block.Position(i) + call.block.ahead;
      const size_t row = call.block.Row(i), length = call.block.Length(i);
      const Cache cache = CacheOf(call, i, call.block.capacity);
      Append(call, row, length, 2 * dim_ + value_dim_, dim_, cache, before);
      Attend({.queries = length,
              .keys = before + length,
              .heads = call.count(),
              .causal = true,
              .offset = before},
             Columns(call, row, HeadWidth(), 0), cache.keys, cache.values, Out(call, row),
             call.scratch);
    }
  }

  void Remember(const MixerCall& call) const override {
    Append(call, 0, call.block.rows(), dim_ + value_dim_, 0, CacheOf(call, 0, memory_), 0);
  }

  void Recall(const MixerCall& call) const override {
    for (size_t i = 0; i < call.block.sequences; ++i) {
      const Cache cache = CacheOf(call, i, memory_);
      Attend({.queries = call.block.Length(i),
              .keys = call.block.memory_lengths[call.block.Place(i)],
              .heads = call.count()},
             Columns(call, call.block.Row(i), dim_, 0), cache.keys, cache.values,
             Out(call, call.block.Row(i)), call.scratch);
    }
  }

 protected:
  using In = kernels::Strided<const float>;

  struct Shape {
    size_t queries, keys, heads;
    bool causal = false;  // query i attends to keys 0 .. offset + i
    size_t offset = 0;
  };
  // out [queries, heads, M] from q [queries, heads, D], k [keys, heads, D], v [keys, heads, M];
  // 0 without keys.
  virtual void Attend(const Shape& shape, In q, In k, In v, kernels::Strided<float> out,
                      float* scratch) const = 0;
  // Reads one position of each sequence with the kind's step kernel; false if it has none.
  virtual bool Steps(const MixerCall&) const { return false; }

  static In Columns(const MixerCall& call, size_t row, size_t head_width, size_t column) {
    return Rows(call.in + column, row, call.in_width, head_width);
  }

 private:
  struct Cache {
    In keys, values;
    float* first;  // start of the group's first head
    size_t capacity;
  };

  Cache CacheOf(const MixerCall& call, size_t sequence, size_t capacity) const {
    const size_t head = capacity * (dim_ + value_dim_);
    float* first = call.StateOf(sequence) + call.heads.begin * head;
    const auto cached = [&](const float* from, size_t width) {
      return In{from, 0, static_cast<ptrdiff_t>(width), static_cast<ptrdiff_t>(head)};
    };
    return {cached(first, dim_), cached(first + capacity * dim_, value_dim_), first, capacity};
  }

  void Append(const MixerCall& call, size_t row, size_t length, size_t head_width, size_t key,
              const Cache& cache, size_t before) const {
    const In k = Columns(call, row, head_width, key),
             v = Columns(call, row, head_width, key + dim_);
    for (size_t h = 0; h < call.count(); ++h) {
      float* keys = cache.first + h * cache.capacity * (dim_ + value_dim_) + before * dim_;
      float* values = cache.first + h * cache.capacity * (dim_ + value_dim_) +
                      cache.capacity * dim_ + before * value_dim_;
      for (size_t t = 0; t < length; ++t) {
        std::memcpy(keys + t * dim_, k.At(0, t, h), dim_ * sizeof(float));
        std::memcpy(values + t * value_dim_, v.At(0, t, h), value_dim_ * sizeof(float));
      }
    }
  }

  // Whole sequences, without a state.
  void Whole(const MixerCall& call) const {
    for (size_t i = 0; i < call.block.sequences; ++i) {
      const size_t row = call.block.Row(i), length = call.block.Length(i);
      Attend({.queries = length, .keys = length, .heads = call.count(), .causal = causal_},
             Columns(call, row, HeadWidth(), 0), Columns(call, row, HeadWidth(), dim_),
             Columns(call, row, HeadWidth(), 2 * dim_), Out(call, row), call.scratch);
    }
  }

  const bool causal_;
  const size_t memory_;  // maximum length of a memory; 0: self attention
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_MIXER_CACHE_H_
