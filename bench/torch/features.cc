// linnet bench features: measures the approximation error of linear attention with random features.
#include <torch/utils.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/torch/benchmarks.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/nn/feature_map.h"
#include "linnet/nn/mixer.h"
#include "linnet/program/program.h"
#ifdef LINNET_WITH_PLOT
#include "linnet/plot/plot.h"
#endif

namespace linnet::bench {
namespace {

constexpr int64_t kMapHeads = 4, kMapDim = 16, kLength = 128, kMinFeatures = 32;

struct FeaturesBenchOptions {
  int64_t max_features = 2048;
  int draws = 16;
  uint64_t seed = 1;
  bool json = false;
  std::string plot;
};

struct MapCurve {
  const char* map;
  Similarity similarity;
  double scale;  // standard deviation of queries and keys
  std::vector<double> features = {}, error = {};
  double slope = 0;  // of log error against log features
};

// Measures the relative error of attention with random features, as the root mean square over draws
// of the features. The exact value is equation 3 of the paper with the exact similarity.
void Measure(const FeaturesBenchOptions& options, MapCurve& curve) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(options.seed);
  const auto normal = [] {
    return torch::randn({1, kLength, kMapHeads, kMapDim}, torch::kFloat64);
  };
  const torch::Tensor q = curve.scale * normal(), k = curve.scale * normal(), v = normal();
  const nn::MixerSizes sizes{kMapHeads, kMapDim, kMapDim};
  const nn::Mask mask{.causal = true};
  const torch::Tensor want =
      nn::MakeMixer({.kind = "kernel", .eps = 0, .similarity = curve.similarity}, sizes)
          ->forward(q, k, v, mask);
  for (int64_t features = kMinFeatures; features <= options.max_features; features *= 2) {
    const nn::Mixer attention = nn::MakeMixer({.kind = "causal-linear",
                                               .feature_map = curve.map,
                                               .features = static_cast<int>(features),
                                               .eps = 0},
                                              sizes);
    attention->to(torch::kFloat64);
    double squares = 0;
    for (int draw = 0; draw < options.draws; ++draw) {
      nn::RedrawFeatures(*attention);
      squares += (attention->forward(q, k, v, mask) - want).square().mean().item<double>();
    }
    const double error = std::sqrt(squares / options.draws / want.square().mean().item<double>());
    if (!std::isfinite(error)) throw RuntimeError("bench features: the error is NaN or infinite");
    curve.features.push_back(static_cast<double>(features));
    curve.error.push_back(error);
  }
  // Fits the slope by least squares.
  const auto count = static_cast<double>(curve.features.size());
  double x = 0, y = 0, xx = 0, xy = 0;
  for (size_t i = 0; i < curve.features.size(); ++i) {
    const double a = std::log(curve.features[i]), b = std::log(curve.error[i]);
    x += a, y += b, xx += a * a, xy += a * b;
  }
  curve.slope = (xy - x * y / count) / (xx - x * x / count);
}

#ifdef LINNET_WITH_PLOT
void DrawCurves(const std::vector<MapCurve>& curves, const FeaturesBenchOptions& options) {
  plot::Plot panel{.x = {"random features", /*log=*/true}, .y = {"relative error", /*log=*/true}};
  for (const MapCurve& curve : curves) {
    char label[64];
    std::snprintf(label, sizeof(label), "%s, %g: slope %.2f", curve.map, curve.scale, curve.slope);
    panel.series.push_back({.label = label,
                            .x = curve.features,
                            .y = curve.error,
                            .style = plot::Style::kLineAndPoints});
  }
  plot::Series law{.label = "F^(-1/2)", .dashed = true};
  for (const double features : curves[0].features) {
    law.x.push_back(features);
    law.y.push_back(curves[0].error[0] * std::sqrt(curves[0].features[0] / features));
  }
  panel.series.push_back(law);
  plot::Draw({.title = "Error of random features",
              .subtitle =
                  StrCat("causal attention over ", kLength, " positions, ", kMapHeads, " heads of ",
                         kMapDim, "; normal queries and keys with the standard deviation given"),
              .panels = {panel}},
             options.plot);
}
#endif

void Run(const FeaturesBenchOptions& options) {
  std::vector<MapCurve> curves = {{"rff", Similarity::kRbf, 0.5},
                                  {"favor", Similarity::kSoftmax, 0.25},
                                  {"favor", Similarity::kSoftmax, 0.5},
                                  {"favor", Similarity::kSoftmax, 1}};
  std::vector<Record> records;
  for (MapCurve& curve : curves) {
    Measure(options, curve);
    for (size_t i = 0; i < curve.features.size(); ++i) {
      records.push_back(
          {.name = "features",
           .label = StrCat(curve.map, "  deviation ", curve.scale, "  F=", curve.features[i]),
           .value = 100 * curve.error[i],
           .unit = "% error",
           .limit = 100 * curve.error[0] * std::sqrt(curve.features[0] / curve.features[i]),
           .identity = {{"feature_map", curve.map},
                        {"similarity", NameOf(curve.similarity)},
                        {"features", curve.features[i]},
                        {"slope", curve.slope},
                        {"draws", options.draws},
                        {"seed", options.seed}}});
    }
  }
  PrintRecords(records, options.json);
  if (!options.json) {
    for (const MapCurve& curve : curves) {
      std::printf("%-6s deviation %-4g  error falls as F^%.2f\n", curve.map, curve.scale,
                  curve.slope);
    }
  }
#ifdef LINNET_WITH_PLOT
  if (!options.plot.empty()) DrawCurves(curves, options);
#endif
}

}  // namespace

void AddFeatures(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "features", "Measure the error of random feature maps",
      R"(Measures the relative error of causal linear attention with F = 32, 64, ... random
features, against attention with the exact similarity: RBF for the feature map rff, softmax for
favor. Queries and keys are normal with standard deviation 0.5 for rff, and 0.25, 0.5 or 1 for
favor. The limit is the Monte Carlo rate: the error at 32 features, falling as 1 / sqrt(F).)",
      "  linnet bench features\n"
      "  linnet bench features --max-features 4096 --plot features.svg\n");
  auto options = std::make_shared<FeaturesBenchOptions>();
  cli::AddOption(verb, "--max-features", options->max_features, "N", "Maximum number of features",
                 cli::Between(64, 65536));
  cli::AddOption(verb, "--draws", options->draws, "N", "Number of draws to average over",
                 cli::Between(1, 10000));
  verb->add_option("--seed", options->seed, "Random seed of the inputs and the draws")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber.description(""))  // CLI11 reads "-1" as the largest number
      ->capture_default_str();
#ifdef LINNET_WITH_PLOT
  cli::AddOption(verb, "--plot", options->plot, "FILE", "Figure to draw, .png or .svg");
#endif
  cli::AddJsonFlag(verb, options->json);
  verb->callback([options] {
#ifdef LINNET_WITH_PLOT
    if (!options->plot.empty()) {
      plot::CheckFormat(options->plot);
      AtomicFile probe(options->plot);  // fails early if it cannot be written
    }
#endif
    Run(*options);
  });
}

}  // namespace linnet::bench
