// Autoregressive images (section 4.2 of the paper): predicts each byte from all bytes before it, in
// raster order.
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "linnet/error.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/rng.h"
#include "linnet/tasks/images/image_set.h"
#include "linnet/train/task.h"

namespace linnet::train {
namespace {

using torch::Tensor;

class ImagesTask : public Task {
 public:
  explicit ImagesTask(const TrainConfig& config) : config_(config) {
    if (config.data.empty()) {
      throw InputError(
          "--data is missing: name the folder that holds the images "
          "('linnet data mnist' downloads one)");
    }
    train_ = LoadImages(config.dataset, config.data, Split::kTrain);
    validation_ = config.held_out > 0 ? HoldOut(train_, static_cast<size_t>(config.held_out))
                                      : LoadImages(config.dataset, config.data, Split::kTest);
    Keep(train_, config.train_images);
    Keep(validation_, config.validation_images);
    if (train_.size() < static_cast<size_t>(config.batch)) {
      throw InputError("--batch ", config.batch, " is more than the ", train_.size(),
                       " training images",
                       config.held_out > 0 ? StrCat(" that --held-out ", config.held_out, " leaves")
                                           : std::string());
    }
  }

  ModelSpec Spec() const override {
    ModelSpec spec = BaseSpec(config_);
    spec.part =
        ImageSpec{.width = train_.width, .height = train_.height, .channels = train_.channels};
    spec.input.max_length = static_cast<int>(train_.image_bytes()) - 1;
    if (config_.whole_pixels) {
      if (train_.channels != 3) {
        throw InputError("--whole-pixels needs images in color, but those of ", train_.name,
                         " are gray");
      }
      spec.input.whole_pixels = true;
      spec.input.vocabulary = kBeginPixel + 1;
      spec.input.max_length = train_.width * train_.height;
    }
    spec.head.kind = ParseName<HeadKind>(config_.head, "--head");
    if (spec.head.kind == HeadKind::kCategorical) {
      if (config_.whole_pixels) {
        throw InputError(
            "--head categorical predicts single bytes; give --no-whole-pixels or --head logistics");
      }
      if (config_.mixtures != TrainConfig().mixtures) {
        throw InputError("--mixtures is for --head logistics; leave it out");
      }
      spec.head.classes = spec.input.vocabulary;
    } else {
      spec.head.mixtures = config_.mixtures;
    }
    spec.input.pixel_above = config_.pixel_above;
    spec.input.stem.channels = config_.stem;
    if (config_.patch > 1) {
      const int width = EmbeddingWidth(config_);
      spec.input.patch = {.tokens = config_.patch,
                          .width = width,
                          .d_ff = config_.patch_d_ff > 0 ? config_.patch_d_ff : 2 * width,
                          .convolution = config_.patch_convolution};
    } else if (config_.patch_width > 0 || config_.patch_d_ff > 0 || config_.patch_convolution > 0) {
      throw InputError("--patch-width, --patch-d-ff and --patch-convolution need --patch");
    }
    return spec;
  }

  int64_t StepsPerEpoch() const override {
    return static_cast<int64_t>(train_.size()) / config_.batch;
  }

  void Prepare(nn::Network& network) const override {
    if (config_.whole_pixels) return;
    torch::NoGradGuard no_grad;
    dynamic_cast<nn::SequenceModelImpl&>(network).first_value.copy_(
        torch::tensor(FirstByteDistribution(train_)));
  }

  int64_t TokensPerStep() const override {
    const auto bytes = static_cast<int64_t>(train_.image_bytes());
    return config_.batch * (config_.whole_pixels ? bytes / 3 : bytes - 1);
  }

  StepLoss Loss(nn::Network& network, int64_t step, const Part& part) override {
    const int64_t begin = part.Begin(config_.batch), size = part.End(config_.batch) - begin;
    const Tensor pixels = BatchTensors(step)[0].narrow(0, begin, size);
    const Tensor bits = BitsPerDim(network, ToDevice(pixels, network.device())) *
                        (static_cast<double>(size) / static_cast<double>(config_.batch));
    return {bits, {{"bits_per_dim", bits.detach()}}, size * TokensPerStep() / config_.batch};
  }

  std::vector<Tensor> BatchTensors(int64_t step) override {
    const Tensor pixels = Pixels(train_, Chosen(step));
    for (int64_t i = 0; config_.flips && i < config_.batch; ++i) {
      Philox rng(config_.seed, ~static_cast<uint64_t>(step), static_cast<uint64_t>(i) << 32);
      if (rng.Below(2) == 0) continue;
      const Tensor image = pixels[i].view({train_.height, train_.width, train_.channels});
      image.copy_(image.flip(1));
    }
    return {pixels};
  }

  StepLoss LossOf(nn::Network& network, const std::vector<Tensor>& batch) override {
    const Tensor bits = BitsPerDim(network, batch[0]);
    return {bits, {{"bits_per_dim", bits.detach()}}, TokensPerStep()};
  }

  std::vector<double> ValidationSums(nn::Network& network, const Part& part) override {
    constexpr size_t kBatch = 16;
    double sum = 0;
    for (size_t begin = 0; begin < validation_.size(); begin += kBatch) {
      if (!part.Has(begin / kBatch)) continue;
      std::vector<uint32_t> indices(std::min(kBatch, validation_.size() - begin));
      std::iota(indices.begin(), indices.end(), static_cast<uint32_t>(begin));
      const Tensor pixels = ToDevice(Pixels(validation_, indices), network.device());
      sum += BitsPerDim(network, pixels).item<double>() * static_cast<double>(indices.size());
    }
    return {sum};
  }
  Metrics MetricsOf(const std::vector<double>& sums) const override {
    return {{"bits_per_dim", sums[0] / static_cast<double>(validation_.size())}};
  }

  std::string Data() const override {
    return StrCat(train_.name, ": ", train_.size(), " training images, validated on ",
                  validation_.size(), config_.held_out > 0 ? " held-out images" : " test images");
  }

 private:
  static void Keep(ImageSet& images, int limit) {
    const size_t count = static_cast<size_t>(limit);
    if (limit == 0 || images.size() <= count) return;
    images.pixels.resize(count * images.image_bytes());
    images.labels.resize(count);
  }

  // Takes the last `count` images out of `images` and returns them.
  static ImageSet HoldOut(ImageSet& images, size_t count) {
    if (count >= images.size()) {
      throw InputError("--held-out ", count, " leaves none of the ", images.size(),
                       " training images; hold out fewer");
    }
    const size_t left = images.size() - count;
    ImageSet last{images.name, images.width, images.height, images.channels, {}, {}};
    const auto from_left = [&](const std::vector<uint8_t>& all, size_t each) {
      return std::vector<uint8_t>(all.begin() + static_cast<ptrdiff_t>(left * each), all.end());
    };
    last.pixels = from_left(images.pixels, images.image_bytes());
    last.labels = from_left(images.labels, 1);
    Keep(images, static_cast<int>(left));
    return last;
  }

  // The indices of an update's images.
  std::span<const uint32_t> Chosen(int64_t step) {
    const int64_t epoch = step / StepsPerEpoch(), in_epoch = step % StepsPerEpoch();
    if (epoch != epoch_) {
      order_ = RandomPermutation(static_cast<uint32_t>(train_.size()),
                                 Philox(config_.seed, static_cast<uint64_t>(epoch)));
      epoch_ = epoch;
    }
    return {order_.data() + in_epoch * config_.batch, static_cast<size_t>(config_.batch)};
  }

  // The bytes of some images: [n, bytes] int64, on the host.
  static Tensor Pixels(const ImageSet& images, std::span<const uint32_t> indices) {
    const size_t bytes = images.image_bytes();
    const Tensor pixels = torch::empty(
        {static_cast<int64_t>(indices.size()), static_cast<int64_t>(bytes)}, torch::kInt64);
    int64_t* to = pixels.data_ptr<int64_t>();
    for (uint32_t i : indices) to = std::copy_n(images.image(i).data(), bytes, to);
    return pixels;
  }

  static Tensor BitsPerDim(nn::Network& network, const Tensor& pixels) {
    const int64_t length = pixels.size(1) - 1;
    auto& model = dynamic_cast<nn::SequenceModelImpl&>(network);
    if (network.spec().input.whole_pixels) {
      const Tensor colors = pixels.unflatten(1, {-1, 3});
      const Tensor read = nn::PixelTokens(colors);
      const Tensor tokens =
          torch::constant_pad_nd(read.narrow(1, 0, read.size(1) - 1), {1, 0}, kBeginPixel);
      return nn::PixelLogisticsNats(model.forward(tokens), colors).mean() / (3 * std::numbers::ln2);
    }
    const Tensor logits = model.forward(pixels.narrow(1, 0, length));
    const Tensor bytes = pixels.narrow(1, 1, length);
    const Tensor nats = network.spec().logistics()
                            ? nn::MixtureOfLogisticsNats(logits, bytes)
                            : nn::CrossEntropyNats(logits.flatten(0, 1), bytes.flatten());
    return nats.mean() / std::numbers::ln2;
  }

  TrainConfig config_;
  ImageSet train_, validation_;
  int64_t epoch_ = -1;
  std::vector<uint32_t> order_;
};

}  // namespace

const TaskInfo kImagesTask = {
    "images",
    "Train a model of images, byte by byte or pixel by pixel in raster order (the paper's section "
    "4.2)",
    "linnet train images --preset small --data mnist/ --out runs/digits",
    {{"paper",
      "the paper's MNIST model and recipe: 8 layers x 256, RAdam at 1e-4, 250 epochs; weeks on two "
      "cores",
      R"({})"},
     {"small", "4 layers x 128, RAdam at 1e-3, 5 epochs: three hours on two cores in fp32",
      R"({"layers": 4, "heads": 4, "d_model": 128, "activation": "gelu", "lr": 1e-3,
          "lr_warmup": 200, "epochs": 5})"},
     {"color",
      "color images of 32 x 32 whole pixels, a row at a time, with the gated delta rule and a "
      "stem: 3.69 bits/dim on CIFAR-10 after 14 minutes in fp32 on one core",
      R"({"layers": 4, "heads": 4, "d_model": 128, "activation": "gelu", "norm_first": true,
          "attention": "gated-delta-net", "pixel_above": true, "whole_pixels": true, "stem": 64,
          "patch": 32, "batch": 8, "optimizer": "muon", "beta2": 0.98, "lr": 1.5e-2,
          "lr_warmup": 100, "lr_decay": 100000000, "lr_decay_form": "cosine", "steps": 2600,
          "validate_every": 500})"},
     {"demo",
      "4 layers x 128 with the gated delta rule that read a row at a time, a stem and a "
      "categorical head: 0.89 bits/dim on MNIST after five minutes in fp32 on one core",
      R"({"layers": 4, "heads": 4, "d_model": 128, "activation": "gelu", "norm_first": true,
          "attention": "gated-delta-net", "head": "categorical", "pixel_above": true, "stem": 64,
          "patch": 28, "patch_convolution": 28, "positions": "none", "batch": 8,
          "optimizer": "muon", "beta2": 0.98, "lr": 1.5e-2, "lr_warmup": 100,
          "lr_decay": 100000000, "lr_decay_form": "cosine", "steps": 1100,
          "validate_every": 200})"}},
    [](const TrainConfig& config) -> std::unique_ptr<Task> {
      return std::make_unique<ImagesTask>(config);
    }};

}  // namespace linnet::train
