#include "linnet/tasks/images/images.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "linnet/base/error.h"
#include "linnet/base/rng.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/tasks/task.h"

namespace linnet {
namespace {

size_t Pixels(const Engine& engine) {
  const ModelSpec& spec = engine.model().spec();
  if (!spec.image()) {
    throw InputError(engine.model().path(), ": a model of the task '", spec.task,
                     "', not of images");
  }
  return static_cast<size_t>(spec.input.max_length) + 1;
}

size_t Count(const Engine& engine, std::span<const uint8_t> images) {
  const size_t pixels = Pixels(engine);
  if (images.empty() || images.size() % pixels != 0) {
    throw InputError(engine.model().path(), ": its images have ", pixels, " bytes each; ",
                     images.size(), " bytes make no whole images");
  }
  return images.size() / pixels;
}

void CheckOptions(const SampleOptions& options) {
  if (options.batch == 0) throw InputError("the batch must be at least 1");
  if (!(options.temperature > 0) || !std::isfinite(options.temperature)) {
    throw InputError("the temperature must be above 0; got ", options.temperature);
  }
}

// The generator of image `index` at one position. It depends on these two only, so neither the
// batch nor the number of given bytes affects the draws.
Philox Draws(const SampleOptions& options, size_t index, size_t position) {
  return Philox(options.seed, options.first_stream + index, position);
}

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

// Calls body(first, count) for the batches of `total` images, reporting after each.
template <class Body>
void ForBatches(size_t total, const SampleOptions& options, Body body) {
  const size_t batch = std::min(options.batch, std::max<size_t>(total, 1));
  for (size_t first = 0; first < total; first += batch) {
    const size_t count = std::min(batch, total - first);
    body(first, count);
    if (options.progress != nullptr) (*options.progress)(first + count, total);
  }
}

// Makes `state` the initial state of `count` sequences.
void Renew(Engine& engine, size_t count, State& state) {
  if (state.batch() == count) {
    state.Reset();
  } else {
    state = engine.NewState(count);
  }
}

// Draws all but the first `known` bytes of each image.
void Continue(Engine& engine, std::span<uint8_t> images, size_t known,
              const SampleOptions& options) {
  const size_t pixels = Pixels(engine), outputs = engine.output_size();
  const size_t mixtures = outputs / 3;
  if (known == pixels) return;
  const kernels::LogisticsSamplerOptions sampler{options.temperature, options.reference_scale};
  State state;
  std::vector<int32_t> tokens;
  std::vector<float> head(std::min(options.batch, images.size() / pixels) * outputs);
  ForBatches(images.size() / pixels, options, [&](size_t first, size_t count) {
    const auto image = [&](size_t i) { return images.subspan((first + i) * pixels, pixels); };
    const std::span<float> out = std::span(head).first(count * outputs);
    tokens.resize(count * known);
    for (size_t i = 0; i < count; ++i) {
      std::copy_n(image(i).begin(), known, tokens.begin() + static_cast<ptrdiff_t>(i * known));
    }
    Renew(engine, count, state);
    engine.Prefix(state, tokens, known, out);
    tokens.resize(count);
    for (size_t p = known; p < pixels; ++p) {
      const auto draw = [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
          Philox draws = Draws(options, first + i, p);
          const float u_mixture = draws.Uniform(), u_value = draws.Uniform();
          const uint8_t byte = kernels::SampleMixtureOfLogistics(mixtures, &out[i * outputs],
                                                                 u_mixture, u_value, sampler);
          image(i)[p] = byte;
          tokens[i] = byte;
        }
      };
      // Drawing few is faster than waking another thread.
      constexpr size_t kMany = 16;
      count < kMany ? draw(0, count) : engine.pool().For(count, draw);
      if (p + 1 < pixels) engine.Step(state, tokens, out);
    }
  });
}

}  // namespace

std::vector<uint8_t> SampleImages(Engine& engine, size_t count, const SampleOptions& options) {
  const size_t pixels = Pixels(engine);
  CheckOptions(options);
  if (count > PTRDIFF_MAX / pixels) throw InputError("there is no room for ", count, " images");
  std::vector<uint8_t> images(count * pixels);
  for (size_t i = 0; i < count; ++i) {
    images[i * pixels] = DrawFirst(engine.model().first_value(), Draws(options, i, 0).Uniform());
  }
  Continue(engine, images, 1, options);
  return images;
}

std::vector<uint8_t> CompleteImages(Engine& engine, std::span<const uint8_t> images, size_t known,
                                    const SampleOptions& options) {
  Count(engine, images);
  CheckOptions(options);
  const size_t pixels = Pixels(engine);
  if (known < 1 || known > pixels) {
    throw InputError("between 1 and ", pixels, " bytes of an image can be given; got ", known);
  }
  std::vector<uint8_t> completed(images.begin(), images.end());
  Continue(engine, completed, known, options);
  return completed;
}

BitsPerDimResult BitsPerDim(Engine& engine, std::span<const uint8_t> images,
                            const SampleOptions& options) {
  const size_t total = Count(engine, images), pixels = Pixels(engine), length = pixels - 1;
  CheckOptions(options);
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
    const size_t rows = count * length;
    tokens.clear();
    targets.clear();
    for (size_t i = 0; i < count; ++i) {
      const auto image = images.subspan((first + i) * pixels, pixels);
      tokens.insert(tokens.end(), image.begin(), image.end() - 1);
      targets.insert(targets.end(), image.begin() + 1, image.end());
    }
    head.resize(rows * outputs);
    nats.resize(rows);
    Renew(engine, count, state);
    engine.Prefix(state, tokens, length, head);
    kernels::MixtureOfLogistics(rows, outputs / 3, head.data(), targets.data(),
                                {.nats = nats.data()}, parallel_for);
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
    throw InputError("--split validation: data sets of images have train and test");
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
