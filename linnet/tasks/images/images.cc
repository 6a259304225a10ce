#include "linnet/tasks/images/images.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "linnet/base/thread_pool.h"
#include "linnet/error.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/kernels/pixel_logistics.h"
#include "linnet/model/pixels.h"
#include "linnet/rng.h"
#include "linnet/sampling.h"
#include "linnet/tasks/task.h"

namespace linnet {
namespace {

// The number of bytes of an image. Throws InputError for a model of another task.
size_t ImageBytes(const Model& model) {
  const ModelSpec& spec = model.spec();
  if (!spec.image()) {
    throw InputError(model.path(), ": a model of the task '", spec.task, "', not of images");
  }
  return static_cast<size_t>(spec.image()->Bytes());
}

// Bytes of a position: a byte, or the colors of a whole pixel.
size_t Unit(const Model& model) { return model.spec().input.whole_pixels ? 3 : 1; }

// Appends the tokens of the first bytes of an image.
void AppendTokens(const Model& model, std::span<const uint8_t> bytes,
                  std::vector<int32_t>& tokens) {
  if (!model.spec().input.whole_pixels) {
    tokens.insert(tokens.end(), bytes.begin(), bytes.end());
    return;
  }
  tokens.push_back(kBeginPixel);
  for (size_t i = 0; i < bytes.size(); i += 3) tokens.push_back(PixelToken(&bytes[i]));
}

// The number of images in `images`. Throws InputError unless it is whole and at least 1.
size_t Count(const Model& model, std::span<const uint8_t> images) {
  const size_t bytes = ImageBytes(model);
  if (images.empty() || images.size() % bytes != 0) {
    throw InputError(model.path(), ": its images have ", bytes, " bytes each; ", images.size(),
                     " bytes are not a whole number of images");
  }
  return images.size() / bytes;
}

void CheckOptions(const Model& model, const SampleOptions& options) {
  if (options.batch == 0) throw InputError("the batch must be at least 1");
  if (!(options.temperature > 0) || !std::isfinite(options.temperature)) {
    throw InputError("the temperature must be above 0; got ", options.temperature);
  }
  if (options.reference_scale && !model.spec().logistics()) {
    throw InputError(model.path(),
                     ": has a categorical head; the reference scale is for mixtures of logistics");
  }
}

// The random numbers for one byte or pixel of image `index`. They depend neither on the batch nor
// on how many bytes of the image are given.
Philox Draws(const SampleOptions& options, size_t index, size_t unit) {
  return Philox(options.seed, options.first_stream + index, unit);
}

// Draws from `probability` by inversion of its cumulative sum, with u in [0, 1). Returns `last`
// instead of `byte`: rounding may move `byte` past the last byte of positive probability.
uint8_t DrawFirst(std::span<const float> probability, float u) {
  double left = 0;
  for (float p : probability) left += p;
  left *= u;
  size_t byte = 0, last = 0;
  for (; byte < probability.size(); ++byte) {
    if (probability[byte] > 0) last = byte;
    left -= probability[byte];
    if (left < 0) break;
  }
  return static_cast<uint8_t>(last);
}

uint8_t DrawNext(const Model& model, std::span<const float> outputs, Philox draws,
                 const SampleOptions& options) {
  if (!model.spec().logistics()) {
    return static_cast<uint8_t>(Choose(outputs, {.temperature = options.temperature}, draws));
  }
  const float u_mixture = draws.Uniform(), u_value = draws.Uniform();
  return kernels::SampleMixtureOfLogistics(outputs.size() / 3, outputs.data(), u_mixture, u_value,
                                           {options.temperature, options.reference_scale});
}

void DrawNextPixel(std::span<const float> outputs, Philox draws, const SampleOptions& options,
                   uint8_t* rgb) {
  std::array<float, 4> uniform;
  for (float& u : uniform) u = draws.Uniform();
  kernels::SamplePixel(outputs.size() / 10, outputs.data(), uniform,
                       {options.temperature, options.reference_scale}, rgb);
}

// -ln p of each byte, given the outputs [rows, output size] of the positions that predict them.
void Nats(const Model& model, std::span<const float> outputs, std::span<const uint8_t> bytes,
          std::span<float> nats, ParallelFor parallel_for) {
  const size_t unit = Unit(model), rows = bytes.size() / unit, size = outputs.size() / rows;
  if (unit == 1 && model.spec().logistics()) {
    kernels::MixtureOfLogistics(rows, size / 3, outputs.data(), bytes.data(), {.nats = nats.data()},
                                parallel_for);
    return;
  }
  parallel_for(rows, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      const std::span<const float> row = outputs.subspan(r * size, size);
      if (unit == 1) {
        nats[r] = LogSumExp(row) - row[bytes[r]];
      } else {
        kernels::PixelNats(size / 10, row.data(), &bytes[3 * r], &nats[3 * r]);
      }
    }
  });
}

// Throws InputError unless byte `position` exists and `outputs` has the right size: the head's
// output size, or 0 at position 0, whose byte the model does not predict.
void CheckOutputs(const Model& model, std::span<const float> outputs, size_t position) {
  if (position >= ImageBytes(model)) {
    throw InputError("there is no byte ", position, " in an image of ", ImageBytes(model),
                     " bytes");
  }
  const size_t wanted = position == 0 ? 0 : static_cast<size_t>(model.spec().OutputSize());
  if (outputs.size() != wanted) {
    throw InputError("byte ", position, " is drawn from ", wanted, " outputs; got ",
                     outputs.size());
  }
}

// Divides `total` images into batches. Calls body(first, count) for each batch, then
// options.progress.
template <class Body>
void ForBatches(size_t total, const SampleOptions& options, Body body) {
  const size_t batch = std::min(options.batch, std::max<size_t>(total, 1));
  for (size_t first = 0; first < total; first += batch) {
    const size_t count = std::min(batch, total - first);
    body(first, count);
    if (options.progress) options.progress(first + count, total);
  }
}

// Makes `state` a state of `count` sequences at position 0.
void Renew(Engine& engine, size_t count, State& state) {
  if (state.batch() == count) {
    state.Reset();
  } else {
    state = engine.NewState(count);
  }
}

class EngineGenerator final : public Generator {
 public:
  EngineGenerator(Engine& engine, size_t batch) : engine_(engine), batch_(batch) {}

  const Model& model() const override { return engine_.model(); }
  size_t batch() const override { return batch_; }

  void Draw(std::span<uint8_t> images, size_t known, const ImageDraws& draws) override {
    const size_t bytes = ImageBytes(model()), count = images.size() / bytes;
    const size_t outputs = engine_.output_size(), unit = Unit(model());
    if (known == bytes || count == 0) return;
    const SampleOptions options{.seed = draws.seed,
                                .first_stream = draws.first_stream,
                                .temperature = draws.temperature,
                                .reference_scale = draws.reference_scale};
    head_.resize(std::max(head_.size(), count * outputs));
    const std::span<float> out = std::span(head_).first(count * outputs);
    tokens_.clear();
    for (size_t i = 0; i < count; ++i) {
      AppendTokens(model(), images.subspan(i * bytes, known), tokens_);
    }
    Renew(engine_, count, state_);
    engine_.Prefix(state_, tokens_, tokens_.size() / count, out);
    tokens_.resize(count);
    for (size_t p = known; p < bytes; p += unit) {
      const auto draw = [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
          uint8_t* to = &images[i * bytes + p];
          const Philox numbers = Draws(options, i, p / unit);
          const std::span<float> from = out.subspan(i * outputs, outputs);
          if (unit == 1) {
            tokens_[i] = *to = DrawNext(model(), from, numbers, options);
          } else {
            DrawNextPixel(from, numbers, options, to);
            tokens_[i] = PixelToken(to);
          }
        }
      };
      // For few images, drawing is faster than waking another thread.
      constexpr size_t kMany = 16;
      count < kMany ? draw(0, count) : engine_.pool().For(count, draw);
      if (p + unit < bytes) engine_.Step(state_, tokens_, out);
    }
  }

 private:
  Engine& engine_;
  const size_t batch_;
  State state_;
  std::vector<int32_t> tokens_;  // the next input of the engine
  std::vector<float> head_;      // outputs of the engine
};

// Draws all but the first `known` bytes of each image.
void Continue(Generator& generator, std::span<uint8_t> images, size_t known,
              const SampleOptions& options) {
  const size_t bytes = ImageBytes(generator.model());
  if (known == bytes) return;
  SampleOptions batches = options;
  batches.batch = std::min(options.batch, generator.batch());
  ForBatches(images.size() / bytes, batches, [&](size_t first, size_t count) {
    generator.Draw(images.subspan(first * bytes, count * bytes), known,
                   {.seed = options.seed,
                    .first_stream = options.first_stream + first,
                    .temperature = options.temperature,
                    .reference_scale = options.reference_scale});
  });
}

}  // namespace

std::unique_ptr<Generator> MakeGenerator(Engine& engine, size_t batch) {
  return std::make_unique<EngineGenerator>(engine, batch);
}

std::vector<uint8_t> SampleImages(Generator& generator, size_t count,
                                  const SampleOptions& options) {
  const size_t bytes = ImageBytes(generator.model());
  CheckOptions(generator.model(), options);
  if (count > PTRDIFF_MAX / bytes) throw InputError("memory cannot hold ", count, " images");
  std::vector<uint8_t> images(count * bytes);
  const std::span<const float> first = generator.model().first_value();
  for (size_t i = 0; i < count && !first.empty(); ++i) {
    images[i * bytes] = DrawFirst(first, Draws(options, i, 0).Uniform());
  }
  Continue(generator, images, first.empty() ? 0 : 1, options);
  return images;
}

std::vector<uint8_t> SampleImages(Engine& engine, size_t count, const SampleOptions& options) {
  return SampleImages(*MakeGenerator(engine, options.batch), count, options);
}

std::vector<uint8_t> CompleteImages(Generator& generator, std::span<const uint8_t> images,
                                    size_t known, const SampleOptions& options) {
  Count(generator.model(), images);
  CheckOptions(generator.model(), options);
  const size_t bytes = ImageBytes(generator.model());
  if (known < 1 || known > bytes) {
    throw InputError("between 1 and ", bytes, " bytes of an image can be given; got ", known);
  }
  if (known % Unit(generator.model()) != 0) {
    throw InputError(generator.model().path(), ": reads whole pixels of 3 bytes; ", known,
                     " bytes cannot be given");
  }
  std::vector<uint8_t> completed(images.begin(), images.end());
  Continue(generator, completed, known, options);
  return completed;
}

std::vector<uint8_t> CompleteImages(Engine& engine, std::span<const uint8_t> images, size_t known,
                                    const SampleOptions& options) {
  return CompleteImages(*MakeGenerator(engine, options.batch), images, known, options);
}

namespace {

// Throws InputError for a model that reads whole pixels.
void CheckReadsBytes(const Model& model) {
  if (model.spec().input.whole_pixels) {
    throw InputError(model.path(), ": reads whole pixels; it draws no single bytes");
  }
}

}  // namespace

uint8_t DrawByte(const Model& model, std::span<const float> outputs, size_t image, size_t position,
                 const SampleOptions& options) {
  CheckReadsBytes(model);
  CheckOutputs(model, outputs, position);
  CheckOptions(model, options);
  Philox draws = Draws(options, image, position);
  if (position == 0) return DrawFirst(model.first_value(), draws.Uniform());
  return DrawNext(model, outputs, draws, options);
}

double ByteNats(const Model& model, std::span<const float> outputs, uint8_t byte, size_t position) {
  CheckReadsBytes(model);
  CheckOutputs(model, outputs, position);
  if (position == 0) return std::abs(std::log(static_cast<double>(model.first_value()[byte])));
  float nats = 0;
  Nats(model, outputs, {&byte, 1}, {&nats, 1}, SerialFor);
  return nats;
}

namespace {

// Throws InputError unless `outputs` are those of a model that reads whole pixels.
void CheckPixelOutputs(const Model& model, std::span<const float> outputs) {
  if (!model.spec().input.whole_pixels) {
    throw InputError(model.path(), ": does not read whole pixels; it draws single bytes");
  }
  if (outputs.size() != static_cast<size_t>(model.spec().OutputSize())) {
    throw InputError("a pixel is drawn from ", model.spec().OutputSize(), " outputs; got ",
                     outputs.size());
  }
}

}  // namespace

std::array<uint8_t, 3> DrawPixel(const Model& model, std::span<const float> outputs, size_t image,
                                 size_t pixel, const SampleOptions& options) {
  CheckPixelOutputs(model, outputs);
  const size_t all = ImageBytes(model) / 3;
  if (pixel >= all) {
    throw InputError("there is no pixel ", pixel, " in an image of ", all, " pixels");
  }
  CheckOptions(model, options);
  std::array<uint8_t, 3> rgb = {};
  DrawNextPixel(outputs, Draws(options, image, pixel), options, rgb.data());
  return rgb;
}

double PixelNats(const Model& model, std::span<const float> outputs,
                 const std::array<uint8_t, 3>& rgb) {
  CheckPixelOutputs(model, outputs);
  float nats[3];
  Nats(model, outputs, rgb, nats, SerialFor);
  return double{nats[0]} + nats[1] + nats[2];
}

BitsPerDimResult BitsPerDim(Engine& engine, std::span<const uint8_t> images,
                            const SampleOptions& options) {
  const Model& model = engine.model();
  const size_t total = Count(model, images), bytes = ImageBytes(model), unit = Unit(model);
  const size_t skipped = model.first_value().empty() ? 0 : 1;  // bytes that are not predicted
  const size_t length = bytes - skipped, positions = length / unit;
  CheckOptions(model, options);
  const size_t outputs = engine.output_size();
  const auto parallel_for = [&](size_t n, RangeBody body) { engine.pool().For(n, body); };
  BitsPerDimResult result;
  result.image.resize(total);
  result.byte.resize(length);
  State state;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> targets;
  std::vector<float> head, nats;
  ForBatches(total, options, [&](size_t first, size_t count) {
    const size_t rows = count * positions;
    tokens.clear();
    targets.clear();
    for (size_t i = 0; i < count; ++i) {
      const auto image = images.subspan((first + i) * bytes, bytes);
      AppendTokens(model, image.first(bytes - unit), tokens);
      targets.insert(targets.end(), image.begin() + static_cast<ptrdiff_t>(skipped), image.end());
    }
    head.resize(rows * outputs);
    nats.resize(rows * unit);
    Renew(engine, count, state);
    engine.Prefix(state, tokens, positions, head);
    Nats(model, head, targets, nats, parallel_for);
    for (size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (size_t t = 0; t < length; ++t) {
        sum += nats[i * length + t];
        result.byte[t] += nats[i * length + t];
      }
      result.image[first + i] = sum / static_cast<double>(length) / std::numbers::ln2;
    }
  });
  for (double bits : result.image) result.mean += bits / static_cast<double>(total);
  for (double& bits : result.byte) bits /= static_cast<double>(total) * std::numbers::ln2;
  return result;
}

ImageSet LoadImagesFor(const ModelSpec& spec, const DatasetOptions& options) {
  if (options.split == "validation") {
    throw InputError("--split validation: image data sets have only train and test");
  }
  ImageSet images = LoadImages(options.name, options.dir,
                               options.split == "train" ? Split::kTrain : Split::kTest);
  if (images.width != spec.image()->width || images.height != spec.image()->height ||
      images.channels != spec.image()->channels) {
    throw InputError(options.dir, ": images of ", images.width, " x ", images.height, " x ",
                     images.channels, ", but the model's are ", spec.image()->width, " x ",
                     spec.image()->height, " x ", spec.image()->channels,
                     "; use the data set it was trained on");
  }
  return images;
}

}  // namespace linnet
