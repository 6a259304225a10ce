// linnet bench stream: measures rounding errors of recurrent sums over millions of positions.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/benchmarks.h"
#include "linnet/base/aligned.h"
#include "linnet/base/progress.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/linear_step.h"
#include "linnet/kernels/narrow_linear_ref.h"
#include "linnet/program/program.h"
#include "linnet/rng.h"

namespace linnet::bench {
namespace {

struct StreamBenchOptions : BenchOptions {
  double positions = 1e7;
};

constexpr size_t kDim = 32;
constexpr double kBar = 1e-4;  // limit of a relative error; Run() throws only far above it

float Phi(float x) { return x >= 0 ? x + 1 : std::exp(x); }

// Relative errors of one head: of the state's sums s and z at the end, and of sampled outputs.
struct Errors {
  double s = 0, z = 0, out = 0;
};
// Compares the steps of one head with the same sums in double precision. linear_step.h defines the
// state (hot, cold, recent) and its narrow form, which is partly in bf16. With `drift`, keys and
// values are nearly constant, so that all additions lose their low bits in the same direction.
Errors Stream(size_t positions, bool narrow, bool drift, ProgressLine& progress) {
  const kernels::LinearStepShape shape{1, kDim, kDim, narrow};
  AlignedBuffer<float> hot(shape.HotFloats()), cold(shape.ColdFloats()),
      scratch(shape.ScratchFloats());
  std::vector<double> s(kDim * kDim), z(kDim);
  std::vector<float> q(kDim), k(kDim), v(kDim), out(kDim);
  uint8_t recent = 0;
  Philox rng(/*seed=*/5, /*stream=*/drift);
  RelativeError out_error;
  const size_t looked_at = std::max<size_t>(positions / 1000, 1);  // compares 1 output in this many
  const auto rounded = [&](float x) { return narrow ? kernels::RoundedToBFloat16(x) : double{x}; };
  for (size_t t = 0; t < positions; ++t) {
    for (size_t i = 0; i < kDim; ++i) {
      q[i] = rng.Normal();
      k[i] = drift ? 0.3f + 0.01f * rng.Uniform() : rng.Normal();
      v[i] = drift ? 0.7f + 0.01f * rng.Uniform() : 0.5f + rng.Normal();
    }
    kernels::LinearStep(shape, 1, {},
                        {.heads = {0, 1},
                         .q = kernels::RowMajor<const float>(q.data(), 1, 1, kDim),
                         .k = kernels::RowMajor<const float>(k.data(), 1, 1, kDim),
                         .v = kernels::RowMajor<const float>(v.data(), 1, 1, kDim),
                         .out = kernels::RowMajor(out.data(), 1, 1, kDim),
                         .hot = hot.data(),
                         .cold = cold.data(),
                         .recent = &recent,
                         .scratch = scratch.data()});
    recent = shape.NextRecent(recent);
    for (size_t f = 0; f < kDim; ++f) {
      const double phi = rounded(Phi(k[f]));
      z[f] += phi;
      for (size_t c = 0; c < kDim; ++c) s[f * kDim + c] += phi * rounded(v[c]);
    }
    if (t % looked_at != 0 && t + 1 != positions) continue;
    double den = 0;
    std::vector<double> want(kDim);
    for (size_t f = 0; f < kDim; ++f) {
      den += double{Phi(q[f])} * z[f];
      for (size_t c = 0; c < kDim; ++c) want[c] += double{Phi(q[f])} * s[f * kDim + c];
    }
    for (size_t c = 0; c < kDim; ++c) out_error.Add(out[c], want[c] / den);
    if (progress.Due()) progress.Update(StrCat(t, " of ", positions, " positions"));
  }
  kernels::LinearFold(shape, {0, 1}, hot.data(), cold.data(), recent);
  std::vector<float> got_s(kDim * kDim), got_z(kDim);
  kernels::LinearSums(shape, {0, 1}, hot.data(), cold.data(), got_s.data(), got_z.data());
  RelativeError s_error, z_error;
  for (size_t i = 0; i < s.size(); ++i) s_error.Add(got_s[i], s[i]);
  for (size_t i = 0; i < z.size(); ++i) z_error.Add(got_z[i], z[i]);
  return {s_error.value(), z_error.value(), out_error.value()};
}

void Run(const StreamBenchOptions& options) {
  const auto positions = static_cast<size_t>(options.positions);
  ProgressLine progress(std::cerr, isatty(2) == 1);
  std::vector<Record> records;
  for (const bool narrow : {false, true}) {
    for (const bool drift : {false, true}) {
      const Errors errors = Stream(positions, narrow, drift, progress);
      const auto add = [&](const char* what, double error, double limit) {
        records.push_back({.name = StrCat("stream/", what),
                           .label = StrCat(what, "  ", narrow ? "narrow" : "f32", "  ",
                                           drift ? "nearly equal terms" : "random terms"),
                           .value = 1e6 * error,
                           .unit = "millionths",
                           .limit = 1e6 * limit,
                           .identity = {{"N", positions},
                                        {"narrow", narrow},
                                        {"drift", drift},
                                        {"isa", kernels::ActiveIsa()}}});
        // The error of a sum that has stopped growing exceeds this bound by far.
        if (!(error <= 100 * limit)) {
          throw RuntimeError("bench stream: ", what, " has an error of ", error, " after ",
                             positions, " positions");
        }
      };
      add("s", errors.s, kBar);
      add("z", errors.z, kBar);
      // Outputs of a narrow state use only the leading part of s, which is in bf16.
      add("out", errors.out, narrow ? 1.0 / 256 : kBar);
    }
  }
  progress.Finish(StrCat(positions, " positions"));
  PrintRecords(records, options.json);
}

}  // namespace

void AddStream(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "stream", "Measure the rounding errors of a recurrent state over a long stream",
      R"(Compares the outputs of one head's recurrent steps with double precision: for random
inputs, and for nearly constant ones, where plain fp32 sums stop growing. Errors are relative to the
largest value.)",
      "  linnet bench stream\n"
      "  linnet bench stream --positions 1e6 --json\n");
  auto options = std::make_shared<StreamBenchOptions>();
  cli::AddOption(verb, "--positions", options->positions, "N", "Length of the stream, in positions",
                 cli::Between(1, 1e12));
  cli::AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::bench
