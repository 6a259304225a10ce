// The halves of a loss that --cuda-graph needs, on the CPU.
#include "linnet/train/task.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/nn/network.h"

namespace linnet::train {
namespace {

// A folder of data, deleted at the end.
class Data {
 public:
  Data() : folder_(testing::TempDir() + "linnet-task-test") {
    std::filesystem::create_directories(folder_);
    std::string text;
    for (int i = 0; i < 400; ++i) text += static_cast<char>('a' + i * i % 26);
    WriteFileAtomically(this->text(), text);
    for (const char* split : {"train", "t10k"}) WriteImages(split);
  }
  ~Data() { std::filesystem::remove_all(folder_); }

  const std::string& images() const { return folder_; }
  std::string text() const { return folder_ + "/text"; }

 private:
  // Six images of 28 x 28 as MNIST's files.
  void WriteImages(const std::string& split) const {
    std::string images("\0\0\x08\x03\0\0\0\x06\0\0\0\x1c\0\0\0\x1c", 16);
    std::string labels("\0\0\x08\x01\0\0\0\x06", 8);
    const int step = split == "train" ? 7 : 11;
    for (int i = 0; i < 6 * 28 * 28; ++i) images += static_cast<char>(i * step % 251);
    for (int i = 0; i < 6; ++i) labels += static_cast<char>(i);
    WriteFileAtomically(folder_ + "/" + split + "-images-idx3-ubyte", images);
    WriteFileAtomically(folder_ + "/" + split + "-labels-idx1-ubyte", labels);
  }

  const std::string folder_;
};

TEST(Task, TheLossOfBatchTensorsIsTheLoss) {
  const Data data;
  const std::pair<const TaskInfo*, std::string> cases[] = {{&kCopyTask, ""},
                                                           {&kRecallTask, ""},
                                                           {&kTextTask, data.text()},
                                                           {&kImagesTask, data.images()}};
  for (const auto& [info, path] : cases) {
    const std::string name = info->name;
    TrainConfig config;
    config.task = name, config.data = path;
    config.layers = 1, config.heads = 2, config.d_model = 16;
    config.batch = 3, config.steps = 1, config.max_length = 12, config.context = 20;
    const std::unique_ptr<Task> task = info->make(config);
    torch::manual_seed(1);
    const std::shared_ptr<nn::Network> model = nn::MakeNetwork(task->Spec());
    for (const int64_t step : {0, 1}) {
      const StepLoss whole = task->Loss(*model, step, {});
      const StepLoss halves = task->LossOf(*model, task->BatchTensors(step));
      EXPECT_NEAR(halves.value.item<double>(), whole.value.item<double>(), 1e-6) << name;
      EXPECT_EQ(halves.tokens, whole.tokens) << name;
      const Metrics expected = Read(whole.metrics), metrics = Read(halves.metrics);
      ASSERT_EQ(metrics.size(), expected.size()) << name;
      for (size_t i = 0; i < metrics.size(); ++i) {
        EXPECT_EQ(metrics[i].first, expected[i].first) << name;
        EXPECT_NEAR(metrics[i].second, expected[i].second, 1e-6) << name;
      }
    }
  }
}

TEST(Task, FlipsMirrorHalfOfTheImages) {
  const Data data;
  TrainConfig config;
  config.task = "images", config.data = data.images(), config.batch = 6;
  const std::unique_ptr<Task> plain = kImagesTask.make(config);
  config.flips = true;
  const std::unique_ptr<Task> flipped = kImagesTask.make(config);
  int mirrored = 0;
  for (int64_t step = 0; step < 20; ++step) {
    const torch::Tensor a = plain->BatchTensors(step)[0].view({6, 28, 28});
    const torch::Tensor b = flipped->BatchTensors(step)[0].view({6, 28, 28});
    for (int64_t i = 0; i < 6; ++i) {
      const bool same = torch::equal(b[i], a[i]);
      EXPECT_TRUE(same || torch::equal(b[i], a[i].flip(1)));
      mirrored += !same;
    }
  }
  EXPECT_GT(mirrored, 40);  // of 120
  EXPECT_LT(mirrored, 80);
}

TEST(Task, HeldOutImagesAreTheLastAndAreNotTrainedOn) {
  const Data data;
  TrainConfig config;
  config.task = "images", config.data = data.images(), config.batch = 4, config.held_out = 2;
  config.layers = 1, config.heads = 2, config.d_model = 16;
  const std::unique_ptr<Task> task = kImagesTask.make(config);
  const torch::Tensor all = torch::arange(6 * 28 * 28).mul(7).remainder(251).view({6, 28 * 28});
  const torch::Tensor batch = task->BatchTensors(0)[0];
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ((batch == all[i]).all(1).sum().item<int64_t>(), 1) << i;
  }
  const std::shared_ptr<nn::Network> model = nn::MakeNetwork(task->Spec());
  const double validated = task->MetricsOf(task->ValidationSums(*model, {})).front().second;
  const double expected = task->LossOf(*model, {all.narrow(0, 4, 2)}).value.item<double>();
  EXPECT_NEAR(validated, expected, 1e-5);

  config.held_out = 6;
  EXPECT_THROW(kImagesTask.make(config), InputError);
}

}  // namespace
}  // namespace linnet::train
