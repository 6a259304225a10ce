#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "linnet/capi/capi.h"
#include "linnet/model/precision.h"
#include "linnet/model/spec.h"

linnet_model::linnet_model(std::shared_ptr<const linnet::Model> opened)
    : model(std::move(opened)), spec(linnet::ToJson(model->spec())) {
  if (model->spec().text()) vocabulary.emplace(*model->spec().text());
}

namespace linnet::capi {
namespace {

static_assert(static_cast<int>(StateKind::kNone) == LINNET_STATE_NONE);
static_assert(static_cast<int>(StateKind::kConstant) == LINNET_STATE_CONSTANT);
static_assert(static_cast<int>(StateKind::kCache) == LINNET_STATE_CACHE);
static_assert(static_cast<int>(StateKind::kTokens) == LINNET_STATE_TOKENS);
static_assert(LINNET_TOKEN_END == Vocabulary::kEnd);
static_assert(LINNET_TOKEN_SEPARATOR == Vocabulary::kSeparator);
static_assert(LINNET_TOKEN_UNKNOWN == Vocabulary::kUnknown);

const Model& ModelOf(const linnet_model* model) { return *Given(model, "the model").model; }

ModelOptions OptionsOf(const char* precision) {
  ModelOptions options;
  if (precision != nullptr) options.precision = ParsePrecision(precision);
  return options;
}

// Returns property(model), or `none` on failure.
template <class Result, class Property>
Result PropertyOf(const linnet_model* model, Result none, const Property& property) {
  return ValueOf(none, [&]() -> Result { return static_cast<Result>(property(ModelOf(model))); });
}

// Returns property(image), or 0 if the model is not an image model.
template <class Property>
size_t ImageProperty(const linnet_model* model, const Property& property) {
  return PropertyOf(model, size_t{0}, [&](const Model& own) {
    return own.spec().image() ? property(*own.spec().image()) : 0;
  });
}

}  // namespace

const Vocabulary& VocabularyOf(const linnet_model* model) {
  const linnet_model& given = Given(model, "the model");
  if (!given.vocabulary) {
    throw InputError(given.model->path(), ": a model of the task '", given.model->spec().task,
                     "', which has no vocabulary of text");
  }
  return *given.vocabulary;
}

}  // namespace linnet::capi

using namespace linnet::capi;

extern "C" {

linnet_model* linnet_model_open(const char* path, const char* precision) {
  return ValueOf<linnet_model*>(nullptr, [&] {
    Given(path, "the path");
    return new linnet_model(linnet::Model::Open(path, OptionsOf(precision)));
  });
}

linnet_model* linnet_model_open_memory(const void* bytes, size_t size, const char* label,
                                       const char* precision) {
  return ValueOf<linnet_model*>(nullptr, [&] {
    const auto given = Array(static_cast<const std::byte*>(bytes), size, "the file in memory");
    return new linnet_model(linnet::Model::FromMemory(given, label == nullptr ? "memory" : label,
                                                      OptionsOf(precision)));
  });
}

void linnet_model_free(linnet_model* model) { delete model; }

const char* linnet_model_path(const linnet_model* model) {
  return PropertyOf<const char*>(model, nullptr,
                                 [](const auto& own) { return own.path().c_str(); });
}
const char* linnet_model_task(const linnet_model* model) {
  return PropertyOf<const char*>(model, nullptr,
                                 [](const auto& own) { return own.spec().task.c_str(); });
}
const char* linnet_model_precision(const linnet_model* model) {
  return PropertyOf<const char*>(
      model, nullptr, [](const auto& own) { return linnet::PrecisionName(own.precision()); });
}
const char* linnet_model_spec(const linnet_model* model) {
  return ValueOf<const char*>(nullptr, [&] { return Given(model, "the model").spec.c_str(); });
}
const char* linnet_model_training(const linnet_model* model) {
  return PropertyOf<const char*>(model, nullptr,
                                 [](const auto& own) { return own.training().c_str(); });
}
uint64_t linnet_model_parameters(const linnet_model* model) {
  return PropertyOf<uint64_t>(model, 0,
                              [](const auto& own) { return linnet::ParameterCount(own.spec()); });
}
size_t linnet_model_weight_bytes(const linnet_model* model) {
  return PropertyOf<size_t>(model, 0, [](const auto& own) { return own.weight_bytes(); });
}

int32_t linnet_model_vocabulary(const linnet_model* model) {
  return PropertyOf<int32_t>(model, 0, [](const auto& own) {
    return own.spec().ReadsFrames() ? 0 : own.spec().input.vocabulary;
  });
}
size_t linnet_model_inputs(const linnet_model* model) {
  return PropertyOf<size_t>(model, 0, [](const auto& own) {
    return own.spec().speech() ? own.spec().speech()->Inputs() : 0;
  });
}
size_t linnet_model_outputs(const linnet_model* model) {
  return PropertyOf<size_t>(model, 0, [](const auto& own) { return own.spec().OutputSize(); });
}
size_t linnet_model_positions(const linnet_model* model) {
  return PropertyOf<size_t>(model, 0, [](const auto& own) { return own.spec().input.max_length; });
}
int linnet_model_limited(const linnet_model* model) {
  return PropertyOf<int>(model, 0,
                         [](const auto& own) { return own.most_positions().has_value(); });
}
int linnet_model_state_kind(const linnet_model* model) {
  return PropertyOf<int>(model, LINNET_STATE_NONE,
                         [](const auto& own) { return linnet::StateKindOf(own); });
}
size_t linnet_model_state_bytes(const linnet_model* model) {
  return PropertyOf<size_t>(model, 0, [](const auto& own) -> size_t {
    if (linnet::StateKindOf(own) == linnet::StateKind::kNone) return 0;
    return linnet::StateBytes(own.spec(), own.precision());
  });
}

size_t linnet_model_image_width(const linnet_model* model) {
  return ImageProperty(model, [](const auto& image) { return image.width; });
}
size_t linnet_model_image_height(const linnet_model* model) {
  return ImageProperty(model, [](const auto& image) { return image.height; });
}
size_t linnet_model_image_channels(const linnet_model* model) {
  return ImageProperty(model, [](const auto& image) { return image.channels; });
}
size_t linnet_model_image_bytes(const linnet_model* model) {
  return ImageProperty(model, [](const auto& image) { return image.height * image.RowBytes(); });
}

int32_t linnet_model_sample_rate(const linnet_model* model) {
  return PropertyOf<int32_t>(model, 0, [](const auto& own) {
    return own.spec().speech() ? own.spec().speech()->sample_rate : 0;
  });
}
const char* linnet_model_phones(const linnet_model* model) {
  return PropertyOf<const char*>(model, nullptr, [](const auto& own) {
    return own.spec().speech() ? own.spec().speech()->phones.c_str() : "";
  });
}

const char* linnet_model_unit(const linnet_model* model) {
  return PropertyOf<const char*>(model, nullptr, [](const auto& own) {
    return own.spec().text() ? linnet::NameOf(own.spec().text()->unit) : "";
  });
}
int32_t linnet_model_end(const linnet_model* model) {
  return ValueOf<int32_t>(-1, [&] {
    const auto& vocabulary = Given(model, "the model").vocabulary;
    return vocabulary ? vocabulary->end() : -1;
  });
}

int linnet_encode(const linnet_model* model, const char* text, size_t bytes, int32_t* tokens,
                  size_t capacity, size_t* count) {
  return StatusOf([&] {
    Given(count, "the count") = 0;
    const auto encoded = VocabularyOf(model).Encode(Text(text, bytes, "the text"));
    *count = encoded.size();
    CopyOut(encoded.data(), encoded.size(), tokens, capacity);
  });
}

int linnet_encode_prompt(const linnet_model* model, const char* text, size_t bytes, int32_t* tokens,
                         size_t capacity, size_t* count) {
  return StatusOf([&] {
    Given(count, "the count") = 0;
    const linnet::Vocabulary& vocabulary = VocabularyOf(model);
    std::vector<int32_t> encoded = vocabulary.begin();
    for (const int32_t token : vocabulary.Encode(Text(text, bytes, "the text"))) {
      encoded.push_back(token);
    }
    *count = encoded.size();
    CopyOut(encoded.data(), encoded.size(), tokens, capacity);
  });
}

int linnet_decode(const linnet_model* model, const int32_t* tokens, size_t count, char* text,
                  size_t capacity, size_t* bytes) {
  return StatusOf([&] {
    Given(bytes, "the size") = 0;
    const std::string decoded = VocabularyOf(model).Decode(Array(tokens, count, "tokens"));
    *bytes = decoded.size();
    CopyOut(decoded.c_str(), decoded.size() + 1, text, capacity);
  });
}

int linnet_token_text(const linnet_model* model, int32_t token, char* text, size_t capacity,
                      size_t* bytes) {
  return StatusOf([&] {
    Given(bytes, "the size") = 0;
    const std::string decoded = VocabularyOf(model).Decode(token);
    *bytes = decoded.size();
    CopyOut(decoded.c_str(), decoded.size() + 1, text, capacity);
  });
}

}  // extern "C"
