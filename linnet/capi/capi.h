// Internals of the C API: the objects behind its handles, the boundary that turns exceptions into
// statuses, and checks of arguments.
//
//   int linnet_state_reset(linnet_state* state) {
//     return StatusOf([&] { Given(state, "the state").state.Reset(); });
//   }
#ifndef LINNET_CAPI_CAPI_H_
#define LINNET_CAPI_CAPI_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "linnet/base/thread_pool.h"
#include "linnet/couplet.h"
#include "linnet/engine.h"
#include "linnet/error.h"
#include "linnet/grammar.h"
#include "linnet/linnet.h"
#include "linnet/sampling.h"
#include "linnet/text.h"
#include "linnet/vocabulary.h"

struct linnet_model {
  explicit linnet_model(std::shared_ptr<const linnet::Model> opened);

  std::shared_ptr<const linnet::Model> model;
  std::string spec;                              // JSON
  std::optional<linnet::Vocabulary> vocabulary;  // only of models whose tokens are text
};

struct linnet_engine {
  linnet_engine(std::shared_ptr<const linnet::Model> from, int count)
      : model(std::move(from)), engine(model, {.threads = count}), threads(engine.pool().size()) {}

  std::shared_ptr<const linnet::Model> model;
  linnet::Engine engine;
  int threads;  // of the engine's pool; a `count` of 0 gives one per processor
  // Created by the first call that needs them.
  std::optional<linnet::TextWriter> text;
  std::optional<linnet::CoupletWriter> couplets;
  std::shared_ptr<void> speech;  // an EngineSpeech, which only speech.cc knows
};

struct linnet_state {
  linnet::State state;
};

struct linnet_grammar {
  linnet::Grammar grammar;
};

namespace linnet::capi {

// Thrown when a caller's linnet_progress function ends the call.
struct Cancelled {};

// Sets this thread's last status to LINNET_OK.
void Succeed() noexcept;
// Records the exception being handled as this thread's last status and error; returns the status.
int Fail() noexcept;

// Calls body(), which may throw, and returns the status.
template <class Body>
int StatusOf(const Body& body) noexcept {
  try {
    body();
    Succeed();
    return LINNET_OK;
  } catch (...) {
    return Fail();
  }
}

// Returns body(), or `failure` if it throws.
template <class Result, class Body>
Result ValueOf(Result failure, const Body& body) noexcept {
  try {
    Result result = body();
    Succeed();
    return result;
  } catch (...) {
    Fail();
    return failure;
  }
}

// Returns *pointer. Throws InputError if the pointer is null. `what` names it in the message.
template <class T>
T& Given(T* pointer, const char* what) {
  if (pointer == nullptr) throw InputError(what, " is NULL");
  return *pointer;
}

// The model's vocabulary. Throws InputError if the model is null or its tokens are not text.
const Vocabulary& VocabularyOf(const linnet_model* model);

// Returns the product of the sizes. Throws InputError unless an array of that many 8-byte elements
// fits the address space.
size_t Product(std::initializer_list<size_t> sizes);

// A caller's array of `count` elements. Throws InputError if it is null and `count` is not 0.
template <class T>
std::span<T> Array(T* pointer, size_t count, const char* what) {
  if (count > 0) Given(pointer, what);
  Product({count});
  return {pointer, count};
}

// A copy of a caller's text of `bytes` bytes.
inline std::string Text(const char* text, size_t bytes, const char* what) {
  const std::span<const char> given = Array(text, bytes, what);
  return {given.begin(), given.end()};
}

// Copies a result to a caller's array of `capacity` elements. A null array means that the caller
// asks for the size only; nothing is then copied. Throws InputError if the capacity is too small.
template <class T>
void CopyOut(const T* from, size_t size, T* to, size_t capacity) {
  if (to == nullptr) return;
  if (capacity < size) {
    throw InputError("the result needs room for ", size, " elements, but the capacity is ",
                     capacity);
  }
  std::copy_n(from, size, to);
}

// Throws InputError unless `size`, a struct's size as its caller gave it, is at least `first`, the
// size of the struct's first version, and at most 4 kB.
void CheckSize(size_t size, size_t first, const char* name);
// Throws InputError unless all bytes of a caller's struct after the first `known` ones are zero.
void CheckUnknownFields(const void* options, size_t size, size_t known, const char* name);

// Writes the defaults to a caller's struct of `size` bytes. The caller may use a newer version of
// the struct than this library; its additional fields are set to zero. `first` is sizeof(Options)
// below, because no struct has a second version yet.
template <class Options>
void Initialize(Options* options, size_t size, const Options& defaults, const char* name) {
  Given(options, name);
  CheckSize(size, /*first=*/sizeof(Options), name);
  std::memset(static_cast<void*>(options), 0, size);
  std::memcpy(options, &defaults, std::min(size, sizeof(Options)));
  options->size = size;
}

// Converts a caller's struct to this library's version of it; returns `defaults` if it is null.
// Throws as CheckSize() and CheckUnknownFields() do.
template <class Options>
Options Read(const Options* options, const Options& defaults, const char* name) {
  if (options == nullptr) return defaults;
  CheckSize(options->size, /*first=*/sizeof(Options), name);
  CheckUnknownFields(options, options->size, sizeof(Options), name);
  Options own = defaults;
  std::memcpy(&own, options, std::min(options->size, sizeof(Options)));
  return own;
}

constexpr linnet_sampling kSampling = {.size = sizeof(linnet_sampling),
                                       .temperature = 1,
                                       .top_p = 1,
                                       .top_k = 0,
                                       .seed = 0,
                                       .stream = 0};

// A caller's linnet_sampling, or the defaults if it is null.
inline linnet_sampling ReadSampling(const linnet_sampling* sampling) {
  return Read(sampling, kSampling, "linnet_sampling");
}
inline ChoiceOptions ChoiceOf(const linnet_sampling& sampling) {
  return {.temperature = sampling.temperature, .top_k = sampling.top_k, .top_p = sampling.top_p};
}

}  // namespace linnet::capi

#endif  // LINNET_CAPI_CAPI_H_
