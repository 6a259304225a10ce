#include "linnet/embed/linnet.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/version.h"
#include "linnet/embed/runtime.h"

struct linnet_model {
  std::shared_ptr<const linnet::Model> model;
};
struct linnet_engine {
  explicit linnet_engine(std::shared_ptr<const linnet::Model> model, int threads)
      : engine(std::move(model), {.threads = threads}) {}
  linnet::Engine engine;
};
struct linnet_state {
  linnet::State state;
};

namespace {

thread_local std::string last_error;

// Returns body(), or `failure` if it throws.
template <class Result, class Body>
Result Guarded(Result failure, const Body& body) noexcept {
  try {
    last_error.clear();
    return body();
  } catch (const std::exception& error) {
    try {
      last_error = error.what();
    } catch (...) {  // out of memory
    }
  } catch (...) {
    last_error.clear();
  }
  return failure;
}

template <class T>
const T& Given(const T* pointer, const char* what) {
  if (pointer == nullptr) throw linnet::InputError(what, " is NULL");
  return *pointer;
}
template <class T>
T& Given(T* pointer, const char* what) {
  if (pointer == nullptr) throw linnet::InputError(what, " is NULL");
  return *pointer;
}

const linnet::ModelSpec& SpecOf(const linnet_model* model) {
  return Given(model, "the model").model->spec();
}

}  // namespace

extern "C" {

const char* linnet_version(void) { return LINNET_VERSION; }
const char* linnet_last_error(void) { return last_error.c_str(); }

linnet_model* linnet_model_open(const char* path, const char* precision) {
  return Guarded<linnet_model*>(nullptr, [&] {
    Given(path, "the path");
    linnet::ModelOptions options;
    if (precision != nullptr) options.precision = linnet::ParsePrecision(precision);
    return new linnet_model{linnet::Model::Open(path, options)};
  });
}
void linnet_model_free(linnet_model* model) { delete model; }

int32_t linnet_model_vocabulary(const linnet_model* model) {
  return Guarded<int32_t>(0, [&] { return SpecOf(model).input.vocabulary; });
}
size_t linnet_model_positions(const linnet_model* model) {
  return Guarded<size_t>(0, [&] { return static_cast<size_t>(SpecOf(model).input.max_length); });
}
size_t linnet_model_outputs(const linnet_model* model) {
  return Guarded<size_t>(0, [&] { return static_cast<size_t>(SpecOf(model).OutputSize()); });
}
size_t linnet_model_state_bytes(const linnet_model* model) {
  return Guarded<size_t>(0, [&] {
    const linnet::ModelSpec& spec = SpecOf(model);
    return linnet::StateBytes(spec, model->model->precision());
  });
}
size_t linnet_model_image_bytes(const linnet_model* model) {
  return Guarded<size_t>(0, [&]() -> size_t {
    const linnet::ModelSpec& spec = SpecOf(model);
    return spec.image() ? static_cast<size_t>(spec.input.max_length) + 1 : 0;
  });
}

linnet_engine* linnet_engine_new(const linnet_model* model, int threads) {
  return Guarded<linnet_engine*>(nullptr, [&] {
    if (threads < 0 || threads > 1024) {
      throw linnet::InputError("an engine has 0 (every processor) to 1024 threads, not ", threads);
    }
    return new linnet_engine(Given(model, "the model").model, threads);
  });
}
void linnet_engine_free(linnet_engine* engine) { delete engine; }

linnet_state* linnet_state_new(const linnet_engine* engine, size_t batch) {
  return Guarded<linnet_state*>(nullptr, [&] {
    return new linnet_state{Given(engine, "the engine").engine.NewState(batch)};
  });
}
void linnet_state_free(linnet_state* state) { delete state; }

linnet_state* linnet_state_fork(const linnet_state* state, size_t copies) {
  return Guarded<linnet_state*>(
      nullptr, [&] { return new linnet_state{Given(state, "the state").state.Fork(copies)}; });
}
size_t linnet_state_batch(const linnet_state* state) {
  return Guarded<size_t>(0, [&] { return Given(state, "the state").state.batch(); });
}
size_t linnet_state_position(const linnet_state* state, size_t sequence) {
  return Guarded<size_t>(0, [&] { return Given(state, "the state").state.position(sequence); });
}
int linnet_state_save(const linnet_state* state, const linnet_engine* engine, const char* path) {
  return Guarded(1, [&] {
    Given(path, "the path");
    Given(state, "the state").state.Save(path, Given(engine, "the engine").engine.model());
    return 0;
  });
}
linnet_state* linnet_state_load(const linnet_engine* engine, const char* path) {
  return Guarded<linnet_state*>(nullptr, [&] {
    Given(path, "the path");
    return new linnet_state{linnet::State::Load(path, Given(engine, "the engine").engine.model())};
  });
}

int linnet_step(linnet_engine* engine, linnet_state* state, const int32_t* tokens, float* outputs) {
  return Guarded(1, [&] {
    Given(outputs, "outputs");
    return linnet_prefix(engine, state, tokens, 1, outputs);
  });
}

int linnet_prefix(linnet_engine* engine, linnet_state* state, const int32_t* tokens, size_t length,
                  float* outputs) {
  return Guarded(1, [&] {
    linnet::Engine& runs = Given(engine, "the engine").engine;
    linnet::State& of = Given(state, "the state").state;
    Given(tokens, "tokens");
    const size_t batch = of.batch();
    if (length > SIZE_MAX / sizeof(int32_t) / std::max<size_t>(batch, 1)) {
      throw linnet::InputError("the length ", length, " is too large");
    }
    runs.Prefix(of, {tokens, batch * length}, length,
                outputs == nullptr ? std::span<float>()
                                   : std::span<float>(outputs, batch * runs.output_size()));
    return 0;
  });
}

int linnet_sample_images(linnet_engine* engine, size_t count, uint64_t seed, uint8_t* pixels) {
  return Guarded(1, [&] {
    linnet::Engine& runs = Given(engine, "the engine").engine;
    Given(pixels, "pixels");
    const std::vector<uint8_t> drawn = linnet::SampleImages(runs, count, {.seed = seed});
    std::copy(drawn.begin(), drawn.end(), pixels);
    return 0;
  });
}

}  // extern "C"
