// Compares the gated recurrences (linnet/kernels/scan.h), reference and kernel, with tensors
// computed by other programs (tests/golden/README.md). Reads every *.safetensors of a known kind
// below tests/golden/gated and, if it is set, below LINNET_GOLDEN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/safetensors.h"
#include "linnet/kernels/scan_test_util.h"

namespace linnet::kernels {
namespace {

namespace fs = std::filesystem;

// A kind of file: its name, the ScanDecay and ScanWrite of its recurrence, and the names of the
// file's tensors ("": none).
struct Kind {
  const char* name;
  ScanDecay decay;
  ScanWrite write;
  const char *q, *k, *v, *g, *erase, *strength;
};
constexpr Kind kKinds[] = {
    {"retention", ScanDecay::kHead, ScanWrite::kAdd, "q", "k", "v", "", "", ""},
    {"linear_attn", ScanDecay::kNone, ScanWrite::kAdd, "q", "k", "v", "", "", ""},
    {"simple_gla", ScanDecay::kHead, ScanWrite::kAdd, "q", "k", "v", "g", "", ""},
    {"ssd", ScanDecay::kHead, ScanWrite::kAdd, "C", "B", "x", "A", "", ""},
    {"gla", ScanDecay::kKey, ScanWrite::kAdd, "q", "k", "v", "gk", "", ""},
    {"delta_rule", ScanDecay::kNone, ScanWrite::kDelta, "q", "k", "v", "", "beta", ""},
    {"gated_delta_rule", ScanDecay::kHead, ScanWrite::kDelta, "q", "k", "v", "g", "beta", ""},
    {"gated_delta_product", ScanDecay::kHead, ScanWrite::kDelta, "q", "k", "v", "g", "beta", ""},
    {"kda", ScanDecay::kKey, ScanWrite::kDelta, "q", "k", "v", "g", "beta", ""},
    {"gdn2", ScanDecay::kKey, ScanWrite::kTwoSided, "q", "k", "v", "g", "b", "w"},
    {"rwkv7", ScanDecay::kKey, ScanWrite::kRwkv7, "r", "k", "v", "w", "a", "b"},
};

// Outputs and gradients of a scan.
struct Results {
  Doubles out, s, z;
  ScanValues<double> grad;
};

// [outer, rows, columns] to [outer, columns, rows].
Doubles Transposed(const Doubles& x, size_t rows, size_t columns) {
  Doubles y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t outer = i / (rows * columns), r = i / columns % rows, c = i % columns;
    y[(outer * columns + c) * rows + r] = x[i];
  }
  return y;
}

// One file as a scan problem. Expect() converts a scan's results to the file's layout and compares.
class Case {
 public:
  Case(const SafetensorsFile& file, const Kind& kind) : file_(file), kind_(kind) {
    const auto config = nlohmann::json::parse(file.metadata().at("config"));
    const Tensor &q = file.Get(kind.q), &v = file.Get(kind.v), &k = file.Get(kind.k);
    rows_ = static_cast<size_t>(k.shape[1] / q.shape[1]);
    ScanShape& shape = problem.shape;
    ScanOptions& options = problem.options;
    shape = {.batch = static_cast<size_t>(q.shape[0]),
             .length = static_cast<size_t>(k.shape[1]),
             .heads = static_cast<size_t>(v.shape[2]),
             .dim = static_cast<size_t>(q.shape[3]),
             .value_dim = static_cast<size_t>(v.shape[3]),
             .group = static_cast<size_t>(v.shape[2] / q.shape[2])};
    options.decay = kind.decay, options.write = kind.write;
    options.normalize = config.value("normalize", 0) != 0;
    options.eps = 1e-10f;
    scale_ = file.metadata().at("scale").rfind("K^-0.5", 0) == 0
                 ? 1 / std::sqrt(static_cast<double>(shape.dim))
                 : 1;
    options.scale = static_cast<float>(scale_);
    l2_ = config.value("l2", 0) != 0;
    ReadInputs();
    const auto floats = [](const Doubles& x) { return Floats(x.begin(), x.end()); };
    problem.in = {floats(in.q),     floats(in.k),     floats(in.v),  floats(in.decay),
                  floats(in.erase), floats(in.write), floats(in.s0), floats(in.z0)};
    problem.grad_out = floats(Spread(Values("loss_w"), rows_ - 1));
    problem.grad_s = floats(State(Values("loss_u"))), problem.grad_z = floats(Values("loss_uz"));
    problem.grad_z.resize(in.z0.size());
  }

  ScanProblem problem = {};
  ScanValues<double> in;  // problem.in in double precision

  double scale() const { return scale_; }

  void Expect(const Results& got, double tolerance, double grad_tolerance) const {
    const auto expect = [&](const char* name, const Doubles& values, double most) {
      if (!file_.Find(name)) return;
      EXPECT_LE(ScanDifference(values, Values(name), 1e-30), most) << name;
    };
    expect("out", Gather(got.out, rows_ - 1), tolerance);
    expect("final_state", StateBack(got.s), tolerance);
    expect("final_z", got.z, tolerance);
    if (got.grad.q.empty()) return;
    const auto gradient = [&](const std::string& name, const Doubles& values) {
      expect(("grad." + name).c_str(), values, grad_tolerance);
    };
    Doubles q = SumGroups(got.grad.q), k = SumGroups(got.grad.k);
    if (l2_) NormalizeBackward(raw_q_, q), NormalizeBackward(raw_k_, k);
    gradient(kind_.q, Gather(q, rows_ - 1));
    gradient(kind_.k, k);
    gradient(kind_.v, got.grad.v);
    if (*kind_.g) gradient(kind_.g, Gather(got.grad.decay, 0));
    gradient(kind_.erase, got.grad.erase);
    gradient(kind_.strength, got.grad.write);
    gradient("initial_state", StateBack(got.grad.s0));
    gradient("initial_z", got.grad.z0);
  }

 private:
  void ReadInputs() {
    in.q = Spread(Values(kind_.q), rows_ - 1), in.k = Values(kind_.k), in.v = Values(kind_.v);
    raw_q_ = in.q, raw_k_ = in.k;
    if (l2_) Normalize(in.q), Normalize(in.k);
    in.decay = *kind_.g ? Spread(Values(kind_.g), 0) : Doubles();
    if (kind_.name == std::string("retention")) {
      problem.constant_decay = true;
      for (size_t h = 0; h < problem.shape.heads; ++h) {
        in.decay.push_back(std::log1p(-std::pow(2, -5.0 - static_cast<double>(h))));
      }
    }
    in.erase = Values(kind_.erase), in.write = Values(kind_.strength);
    in.s0 = State(Values("initial_state")), in.z0 = Values("initial_z");
    const size_t heads = problem.shape.batch * problem.shape.heads;
    in.s0.resize(heads * problem.shape.dim * problem.shape.value_dim);
    in.z0.resize(heads * problem.shape.dim);
  }
  Doubles Values(const std::string& name) const {
    const Tensor* tensor = name.empty() ? nullptr : file_.Find(name);
    if (!tensor) return {};
    if (tensor->dtype == DType::kF64) {
      return Doubles(tensor->values<double>().begin(), tensor->values<double>().end());
    }
    return Doubles(tensor->f32().begin(), tensor->f32().end());
  }
  // A token of a gated delta product takes rows_ positions of the scan. Spread() puts the token's
  // values at position `which` of these, and 0 at the rest; Gather() is the inverse.
  Doubles Spread(const Doubles& x, size_t which) const {
    const size_t tokens = problem.shape.batch * problem.shape.length / rows_,
                 width = x.size() / tokens;
    Doubles y(rows_ * x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      y[(i / width * rows_ + which) * width + i % width] = x[i];
    }
    return y;
  }
  Doubles Gather(const Doubles& y, size_t which) const {
    const size_t tokens = problem.shape.batch * problem.shape.length / rows_,
                 width = y.size() / rows_ / tokens;
    Doubles x(tokens * width);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = y[(i / width * rows_ + which) * width + i % width];
    }
    return x;
  }
  // States are [value_dim, dim] in files of ssd, and [dim, value_dim] in the scan.
  bool Flipped() const { return kind_.name == std::string("ssd"); }
  Doubles State(const Doubles& x) const {
    return Flipped() ? Transposed(x, problem.shape.value_dim, problem.shape.dim) : x;
  }
  Doubles StateBack(const Doubles& x) const {
    return Flipped() ? Transposed(x, problem.shape.dim, problem.shape.value_dim) : x;
  }
  Doubles SumGroups(const Doubles& x) const {
    Doubles y(x.size() / problem.shape.group);
    for (size_t i = 0; i < x.size(); ++i) {
      y[i / problem.shape.dim / problem.shape.group * problem.shape.dim + i % problem.shape.dim] +=
          x[i];
    }
    return y;
  }
  double Norm(const double* row) const {
    double sum = 1e-6;
    for (size_t d = 0; d < problem.shape.dim; ++d) sum += row[d] * row[d];
    return std::sqrt(sum);
  }
  void Normalize(Doubles& x) const {
    for (auto row = x.data(); row < x.data() + x.size(); row += problem.shape.dim) {
      const double norm = Norm(row);
      for (size_t d = 0; d < problem.shape.dim; ++d) row[d] /= norm;
    }
  }
  void NormalizeBackward(const Doubles& x, Doubles& grad) const {
    for (size_t i = 0; i < x.size(); i += problem.shape.dim) {
      const double norm = Norm(&x[i]);
      double dot = 0;
      for (size_t d = 0; d < problem.shape.dim; ++d) dot += x[i + d] * grad[i + d];
      for (size_t d = 0; d < problem.shape.dim; ++d) {
        grad[i + d] = (grad[i + d] - x[i + d] * dot / (norm * norm)) / norm;
      }
    }
  }

  const SafetensorsFile& file_;
  const Kind& kind_;
  size_t rows_;  // positions of the scan per token
  double scale_;
  bool l2_;
  Doubles raw_q_, raw_k_;
};

Results Reference(const Case& c) {
  const ScanRefResults r = RunScanRef(c.problem, c.in, /*backward=*/true, c.scale());
  return {r.out, r.s, r.z, r.grad};
}

Results Kernel(const Case& c) {
  const auto doubles = [](const Floats& x) { return Doubles(x.begin(), x.end()); };
  const ScanResults r = RunScan(c.problem, /*slots=*/1, SerialFor);
  const ScanValues<float>& g = r.grad;
  return {doubles(r.out),
          doubles(r.s),
          doubles(r.z),
          {doubles(g.q), doubles(g.k), doubles(g.v), doubles(g.decay), doubles(g.erase),
           doubles(g.write), doubles(g.s0), doubles(g.z0)}};
}

// Calls body(case) for each file whose kind is in kKinds. Expects a file for every kind.
template <class Body>
void ForCases(Body body) {
  std::vector<fs::path> files;
  std::vector<std::string> folders = {"tests/golden/gated"};
  if (const char* more = std::getenv("LINNET_GOLDEN")) folders.push_back(more);
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::set<std::string> seen;
  for (const fs::path& path : files) {
    const SafetensorsFile file = SafetensorsFile::Open(path);
    const auto named = file.metadata().find("kind"), level = file.metadata().find("level");
    if (named == file.metadata().end() || level == file.metadata().end()) continue;
    if (level->second != "op") continue;
    for (const Kind& kind : kKinds) {
      if (named->second != kind.name) continue;
      SCOPED_TRACE(path.string());
      body(Case(file, kind));
      seen.insert(kind.name);
    }
  }
  EXPECT_EQ(seen.size(), std::size(kKinds));
}

// Compares both the reference and the kernel of the channel scan.
TEST(GatedGolden, ChannelScanEqualsTensors) {
  for (const char* name : {"hgrn_1", "hgrn_2"}) {
    SCOPED_TRACE(name);
    const auto file = SafetensorsFile::Open(StrCat("tests/golden/gated/", name, ".safetensors"));
    const auto floats = [&](const char* tensor) {
      return file.Find(tensor)
                 ? Floats(file.Get(tensor).f32().begin(), file.Get(tensor).f32().end())
                 : Floats();
    };
    const auto want = [&](const char* tensor) {
      const auto values = file.Get(tensor).values<double>();
      return Doubles(values.begin(), values.end());
    };
    const Tensor& shape = file.Get("x");
    const auto batch = static_cast<size_t>(shape.shape[0]);
    const auto length = static_cast<size_t>(shape.shape[1]);
    const auto channels = static_cast<size_t>(shape.shape[2]);
    const Floats x = floats("x"), g = floats("g"), grad_out = floats("loss_w");
    const Floats grad_h = floats("loss_u");
    Floats h0 = floats("initial_state");
    h0.resize(batch * channels);
    Floats out(x.size()), grad_x = out, grad_g = out, h = h0, grad_h0(h0.size());
    const auto in = [&](const Floats& y) {
      return RowMajor<const float>(y.data(), length, 1, channels);
    };
    const auto to = [&](Floats& y) { return RowMajor(y.data(), length, 1, channels); };
    ChannelScanForward({batch, length, channels},
                       {.x = in(x), .g = in(g), .out = to(out), .h = h.data()}, SerialFor);
    ChannelScanBackward({batch, length, channels},
                        {.g = in(g),
                         .out = in(out),
                         .grad_out = in(grad_out),
                         .h0 = h0.data(),
                         .grad_h = grad_h.data(),
                         .grad_x = to(grad_x),
                         .grad_g = to(grad_g),
                         .grad_h0 = grad_h0.data()},
                        SerialFor);
    EXPECT_LE(ScanDifference(out, want("out")), 1e-5);
    EXPECT_LE(ScanDifference(h, want("final_state")), 1e-5);
    EXPECT_LE(ScanDifference(grad_x, want("grad.x")), 1e-5);
    EXPECT_LE(ScanDifference(grad_g, want("grad.g")), 1e-5);
    if (file.Find("grad.initial_state")) {
      EXPECT_LE(ScanDifference(grad_h0, want("grad.initial_state")), 1e-5);
    }
    for (size_t i = 0; i < batch * channels; ++i) {
      const auto column = [&](const Floats& y) {
        Doubles values;
        for (size_t t = 0; t < length; ++t) {
          values.push_back(y[(i / channels * length + t) * channels + i % channels]);
        }
        return values;
      };
      const ChannelScanRef ref(column(x), column(g), h0[i], column(grad_out), grad_h[i]);
      EXPECT_NEAR(ref.h, want("final_state")[i], 1e-12);
      EXPECT_NEAR(ref.grad_g[0], want("grad.g")[i / channels * length * channels + i % channels],
                  1e-11);
    }
  }
}

// The files' results are in double precision, so the tolerance can be that of doubles.
TEST(GatedGolden, ReferenceEqualsTensors) {
  ForCases([](const Case& c) { c.Expect(Reference(c), 1e-12, 1e-11); });
}

TEST(GatedGolden, KernelEqualsTensors) {
  ForCases([](const Case& c) { c.Expect(Kernel(c), 1e-5, 1e-4); });
}

}  // namespace
}  // namespace linnet::kernels
