// Base class of mixers over a cache of keys and values (private to linnet/runtime).
#ifndef LINNET_RUNTIME_MIXER_CACHE_H_
#define LINNET_RUNTIME_MIXER_CACHE_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/runtime/mixer.h"

namespace linnet {

// Keeps the keys and values of all positions, or of a window of `window_` positions, where position
// p is stored at p mod window_. A derived class defines Attend() for one head of keys and values
// and the heads of queries that share it.
class CacheMixer : public RuntimeMixer {
 public:
  explicit CacheMixer(const MixerMake& make)
      : RuntimeMixer(make.spec, Readers(make.spec)),
        readers_(static_cast<size_t>(Readers(make.spec))),
        width_(static_cast<size_t>(make.spec.value_dim)),
        window_(static_cast<size_t>(make.spec.window)),
        causal_(make.causal || window_ > 0),
        memory_(make.cross ? make.memory : 0) {
    for (size_t i = 0; make.spec.rotary && i < dim_ / 2; ++i) {
      frequencies_.push_back(
          RotaryFrequency(static_cast<int>(i), make.spec.query_dim, make.spec.rotary_base));
    }
  }

  MixerStateSize state_size() const override {
    // In cross attention, the cache has room for the longest memory.
    const size_t kept = memory_ > 0 ? memory_ : window_;
    if (kept > 0) return {.fixed = RoundUp(heads_ * HeadFloats(kept), kAlign)};
    if (!causal_) return {};
    return {.heads = heads_, .dim = dim_, .value_dim = width_};
  }

  size_t ScratchFloats(size_t rows, size_t heads, size_t keys) const override {
    return Turned(rows, heads) + Unrolled(rows) + AttendScratch(rows, std::max(keys, window_));
  }

  void Run(const MixerCall& call) const override {
    const Inputs in = InputsOf(call);
    float* scratch = call.scratch + Turned(call.block.rows(), call.count());
    if (call.state != nullptr && call.block.step && Steps(call, in, scratch)) return;
    for (size_t i = 0; i < call.block.sequences; ++i) {
      for (size_t h = 0; h < call.count(); ++h) {
        if (call.state == nullptr) {
          Whole(call, in, i, h, scratch);
        } else if (window_ > 0) {
          Slide(call, in, i, h, scratch);
        } else {
          Extend(call, in, i, h, scratch);
        }
      }
    }
  }

  void Remember(const MixerCall& call) const override {
    for (size_t h = 0; h < call.count(); ++h) {
      const float* columns = call.in + h * (dim_ + width_);
      CacheOf(call, 0, h, memory_)
          .Store(0, call.block.rows(), Rows(columns, 0, call.in_width, 0),
                 Rows(columns + dim_, 0, call.in_width, 0));
    }
  }

  void Recall(const MixerCall& call) const override {
    for (size_t i = 0; i < call.block.sequences; ++i) {
      for (size_t h = 0; h < call.count(); ++h) {
        const Cache cache = CacheOf(call, i, h, memory_);
        Attend({.queries = call.block.Length(i),
                .keys = call.block.memory_lengths[call.block.Place(i)],
                .heads = readers_},
               Rows(call.in + h * readers_ * dim_, call.block.Row(i), call.in_width, dim_),
               cache.AllKeys(), cache.AllValues(), OutOf(call, call.block.Row(i), h), call.scratch);
      }
    }
  }

 protected:
  using In = kernels::Strided<const float>;

  struct Shape {
    size_t queries, keys, heads;
    bool causal = false;  // query i attends to keys 0 .. offset + i, or the last `window_` of them
    size_t offset = 0;
  };
  // Computes out [queries, heads, M] from q [queries, heads, D] and one head of keys and values:
  // k [keys, D], v [keys, M]. Without keys, out is 0.
  virtual void Attend(const Shape& shape, In q, In k, In v, kernels::Strided<float> out,
                      float* scratch) const = 0;
  virtual size_t AttendScratch(size_t rows, size_t keys) const = 0;

  // The queries, keys and values of a call's rows. If the spec has rotary positions, q and k are
  // rotated.
  struct Inputs {
    const float *q, *k, *v;
    size_t row, head;              // floats between rows and heads of q and k
    size_t value_row, value_head;  // the same for v
    size_t dim;

    In Queries(size_t at, size_t h) const { return Rows(q + h * head, at, row, dim); }
    In Keys(size_t at, size_t h) const { return Rows(k + h * head, at, row, 0); }
    In Values(size_t at, size_t h) const { return Rows(v + h * value_head, at, value_row, 0); }
  };
  // Reads one position of each sequence with the kind's step kernel; returns false if the kind has
  // no such kernel.
  virtual bool Steps(const MixerCall&, const Inputs&, float*) const { return false; }

  kernels::Strided<float> OutOf(const MixerCall& call, size_t row, size_t h) const {
    const auto stride = static_cast<ptrdiff_t>(call.count() * value_dim_);
    return {call.out + (row * call.count() + h) * value_dim_, stride, stride,
            static_cast<ptrdiff_t>(width_)};
  }
  size_t HeadFloats(size_t capacity) const { return capacity * (dim_ + width_); }

  const size_t readers_;  // heads of queries per head of keys and values
  const size_t width_;    // M; value_dim_ is readers_ * M
  const size_t window_;   // 0: all positions

 private:
  static int Readers(const MixerSpec& spec) {
    return FindMixer(spec.kind).windows ? KeyReaders(spec) : 1;
  }

  // A head's keys [capacity, D], then its values [capacity, M].
  struct Cache {
    float *keys, *values;
    size_t capacity, dim, width;

    In AllKeys() const { return Rows(keys, 0, dim, 0); }
    In AllValues() const { return Rows(values, 0, width, 0); }
    // Stores rows of keys and values from position `at` on, modulo the capacity.
    void Store(size_t at, size_t count, In k, In v) const {
      for (size_t t = 0; t < count; ++t) {
        const size_t place = (at + t) % capacity;  // index in the cache
        std::memcpy(keys + place * dim, k.At(0, t, 0), dim * sizeof(float));
        std::memcpy(values + place * width, v.At(0, t, 0), width * sizeof(float));
      }
    }
    // Loads the keys and values of `count` positions from `at` on.
    void Load(size_t at, size_t count, float* k, float* v) const {
      for (size_t t = 0; t < count; ++t) {
        const size_t place = (at + t) % capacity;
        std::memcpy(k + t * dim, keys + place * dim, dim * sizeof(float));
        std::memcpy(v + t * width, values + place * width, width * sizeof(float));
      }
    }
  };

  Cache CacheOf(const MixerCall& call, size_t sequence, size_t h, size_t capacity) const {
    float* first = call.StateOf(sequence) + (call.heads.begin + h) * HeadFloats(capacity);
    return {first, first + capacity * dim_, capacity, dim_, width_};
  }

  // Floats of scratch memory: Turned() for rotated queries and keys, Unrolled() for a window's keys
  // and values in order of position.
  size_t Turned(size_t rows, size_t heads) const {
    if (frequencies_.empty()) return 0;
    return RoundUp(rows * heads * (readers_ + 1) * dim_ + 2 * frequencies_.size(), kAlign);
  }
  size_t Unrolled(size_t rows) const {
    return window_ == 0 ? 0 : RoundUp(HeadFloats(window_ + rows), kAlign);
  }

  Inputs InputsOf(const MixerCall& call) const {
    // both: columns of a head's queries and key; columns: of its queries, key and value.
    const size_t both = (readers_ + 1) * dim_, columns = both + width_;
    Inputs in{.q = call.in,
              .k = call.in + readers_ * dim_,
              .v = call.in + both,
              .row = call.in_width,
              .head = columns,
              .value_row = call.in_width,
              .value_head = columns,
              .dim = dim_};
    if (frequencies_.empty()) return in;
    float* turned = call.scratch;
    float* sine = turned + call.block.rows() * call.count() * both;
    float* cosine = sine + frequencies_.size();
    for (size_t i = 0; i < call.block.sequences; ++i) {
      for (size_t t = 0; t < call.block.Length(i); ++t) {
        const size_t row = call.block.Row(i) + t;
        const auto position = static_cast<double>(call.block.Position(i) + call.block.ahead + t);
        for (size_t c = 0; c < frequencies_.size(); ++c) {
          sine[c] = static_cast<float>(std::sin(position * frequencies_[c]));
          cosine[c] = static_cast<float>(std::cos(position * frequencies_[c]));
        }
        for (size_t h = 0; h < call.count(); ++h) {
          const float* from = call.in + row * call.in_width + h * columns;
          float* to = turned + (row * call.count() + h) * both;
          for (size_t at = 0; at < both; at += dim_) Rotate(sine, cosine, from + at, to + at);
        }
      }
    }
    in.q = turned, in.k = turned + readers_ * dim_;
    in.row = call.count() * both, in.head = both;
    return in;
  }

  void Rotate(const float* sine, const float* cosine, const float* from, float* to) const {
    const size_t pairs = frequencies_.size();
    for (size_t i = 0; i < pairs; ++i) {
      const float a = from[i], b = from[i + pairs];
      to[i] = a * cosine[i] - b * sine[i], to[i + pairs] = b * cosine[i] + a * sine[i];
    }
    std::copy(from + 2 * pairs, from + dim_, to + 2 * pairs);
  }

  // Reads a whole sequence, without a state.
  void Whole(const MixerCall& call, const Inputs& in, size_t sequence, size_t h,
             float* scratch) const {
    const size_t row = call.block.Row(sequence), length = call.block.Length(sequence);
    Attend({.queries = length, .keys = length, .heads = readers_, .causal = causal_},
           in.Queries(row, h), in.Keys(row, h), in.Values(row, h), OutOf(call, row, h), scratch);
  }

  // Reads the next positions, which attend to all keys and values so far.
  void Extend(const MixerCall& call, const Inputs& in, size_t sequence, size_t h,
              float* scratch) const {
    const size_t before = call.block.Position(sequence) + call.block.ahead;
    const size_t row = call.block.Row(sequence), length = call.block.Length(sequence);
    const Cache cache = CacheOf(call, sequence, h, call.block.capacity);
    cache.Store(before, length, in.Keys(row, h), in.Values(row, h));
    Attend({.queries = length,
            .keys = before + length,
            .heads = readers_,
            .causal = true,
            .offset = before},
           in.Queries(row, h), cache.AllKeys(), cache.AllValues(), OutOf(call, row, h), scratch);
  }

  // Reads the next positions, which attend to the keys and values of their windows. Attend() needs
  // keys in order of position, so this copies the earlier ones (from the ring) and the new ones to
  // `all`.
  void Slide(const MixerCall& call, const Inputs& in, size_t sequence, size_t h,
             float* scratch) const {
    const size_t before = call.block.Position(sequence) + call.block.ahead;
    const size_t row = call.block.Row(sequence), length = call.block.Length(sequence);
    const size_t past = std::min(before, window_ - 1);
    const Cache ring = CacheOf(call, sequence, h, window_);
    const Cache all{scratch, scratch + (past + length) * dim_, past + length, dim_, width_};
    ring.Load(before - past, past, all.keys, all.values);
    all.Store(past, length, in.Keys(row, h), in.Values(row, h));
    Attend({.queries = length,
            .keys = past + length,
            .heads = readers_,
            .causal = true,
            .offset = past},
           in.Queries(row, h), all.AllKeys(), all.AllValues(), OutOf(call, row, h),
           scratch + Unrolled(call.block.rows()));
    const size_t kept = std::min(length, window_), skipped = length - kept;
    ring.Store(before + skipped, kept, in.Keys(row + skipped, h), in.Values(row + skipped, h));
  }

  std::vector<double> frequencies_;  // of the rotation; empty: none
  const bool causal_;
  const size_t memory_;  // maximum length of a memory; 0: self attention
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_MIXER_CACHE_H_
