#include "linnet/train/run_report.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <sstream>
#include <string>

#include "linnet/train/weight_averages.h"

namespace linnet::train {
namespace {

StepLoss LossOf(double bits) {
  return {.value = torch::tensor(bits),
          .metrics = {{"bits_per_dim", torch::tensor(bits, torch::kFloat64)}},
          .tokens = 300};
}

TEST(RunReport, EstimatesTheTimeAndNamesTheBestValidation) {
  std::ostringstream out;
  ProgressLine line(out, /*in_place=*/false);
  RunProgress progress;
  progress.step = 10;
  RunReport report(&line, progress, /*steps=*/25, /*steps_per_epoch=*/20, /*now=*/100);
  double now = 100;
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(report.EstimateDue());
    ++progress.step, progress.epochs += 0.05, now += 3;
    report.Count(300);
  }
  EXPECT_TRUE(report.EstimateDue());
  EXPECT_DOUBLE_EQ(report.TakeRate(now), 100);
  EXPECT_DOUBLE_EQ(report.TakeRate(now + 1), 0);
  report.Show(LossOf(2.5), "a remark", now);
  EXPECT_NE(out.str().find("an update takes 3.0s: about 30s to go"), std::string::npos)
      << out.str();
  EXPECT_NE(out.str().find("step 15/25 (epoch 0.25)  2.5000 bits/dim"), std::string::npos);
  EXPECT_NE(out.str().find("  a remark  30s left"), std::string::npos) << out.str();

  report.ShowValidation({{"bits_per_dim", 1.5}}, "");
  ++progress.step;
  out.str("");
  report.ShowValidation({{"bits_per_dim", 1.75}}, "; slower");
  EXPECT_NE(out.str().find("step 16 (epoch 0.25): validation 1.7500 bits/dim after"),
            std::string::npos)
      << out.str();
  EXPECT_NE(out.str().find("; step 15 was better: 1.5000 bits/dim; slower"), std::string::npos);
}

TEST(WeightAverages, FollowTheWeightsAndSwapWithThem) {
  const torch::Tensor weight = torch::zeros({3});
  WeightAverages averages(0.9, {weight}), none(0, {weight});
  weight.fill_(11);
  none.Swap();
  averages.Update(1);  // with a decay of 2 / 11
  averages.Swap();
  EXPECT_NEAR(weight[0].item<float>(), 9, 1e-5);
  averages.Swap();
  EXPECT_EQ(weight[2].item<float>(), 11);
  averages.Update(1000);  // with a decay of 0.9
  EXPECT_NEAR(averages.tensors()[0][0].item<float>(), 9.2, 1e-5);
  EXPECT_TRUE(none.tensors().empty());
}

}  // namespace
}  // namespace linnet::train
