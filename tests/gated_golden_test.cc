// Compares the gated recurrences (linnet/kernels/scan.h), reference and kernel, with tensors that
// other people's programs wrote (tests/golden/README.md). Reads every *.safetensors of a known kind
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

#include "linnet/io/safetensors.h"
#include "linnet/kernels/scan.h"
#include "linnet/kernels/scan_ref.h"

namespace linnet::kernels {
namespace {

namespace fs = std::filesystem;
using Doubles = std::vector<double>;

// A kind of file: its policies, and the names of its tensors ("": none).
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

// Outputs and gradients of a scan, dense as in ScanTensors.
struct Results {
  Doubles out, s, z;
  Doubles q, k, v, decay, erase, write, s0, z0;
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

// max |got - want| / max |want|.
double Difference(const Doubles& got, const Doubles& want) {
  EXPECT_EQ(got.size(), want.size());
  double off = 0, scale = 1e-30;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    if (!(std::abs(got[i] - want[i]) <= off)) off = std::abs(got[i] - want[i]);  // keeps a NaN
    scale = std::max(scale, std::abs(want[i]));
  }
  return off / scale;
}

// One file as a scan: its tensors, and the way back from the scan's results to the file's.
class Case {
 public:
  Case(const SafetensorsFile& file, const Kind& kind) : file_(file), kind_(kind) {
    const auto config = nlohmann::json::parse(file.metadata().at("config"));
    const Tensor &q = file.Get(kind.q), &v = file.Get(kind.v), &k = file.Get(kind.k);
    rows_ = static_cast<size_t>(k.shape[1] / q.shape[1]);
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
    in.q = Spread(Values(kind.q), rows_ - 1), in.k = Values(kind.k), in.v = Values(kind.v);
    raw_q_ = in.q, raw_k_ = in.k;
    if (l2_) Normalize(in.q), Normalize(in.k);
    in.decay = *kind.g ? Spread(Values(kind.g), 0) : Doubles();
    if (kind.name == std::string("retention")) {
      for (size_t h = 0; h < shape.heads; ++h) {
        in.decay.push_back(std::log1p(-std::pow(2, -5.0 - static_cast<double>(h))));
      }
    }
    in.erase = Values(kind.erase), in.write = Values(kind.strength);
    in.s0 = State(Values("initial_state")), in.z0 = Values("initial_z");
    in.s0.resize(shape.batch * shape.heads * shape.dim * shape.value_dim);
    in.z0.resize(shape.batch * shape.heads * shape.dim);
    grad_out = Spread(Values("loss_w"), rows_ - 1);
    grad_s = State(Values("loss_u")), grad_z = Values("loss_uz");
    grad_z.resize(in.z0.size());
  }

  ScanShape shape;
  ScanOptions options;
  Results in;  // q .. z0
  Doubles grad_out, grad_s, grad_z;

  bool ConstantDecay() const { return options.decay == ScanDecay::kHead && !*kind_.g; }
  double scale() const { return scale_; }

  void Expect(const Results& got, double tolerance, double grad_tolerance) const {
    const auto expect = [&](const char* name, const Doubles& values, double most) {
      if (!file_.Find(name)) return;
      EXPECT_LE(Difference(values, Values(name)), most) << name;
    };
    expect("out", Gather(got.out, rows_ - 1), tolerance);
    expect("final_state", StateBack(got.s), tolerance);
    expect("final_z", got.z, tolerance);
    if (got.q.empty()) return;
    const auto gradient = [&](const std::string& name, const Doubles& values) {
      expect(("grad." + name).c_str(), values, grad_tolerance);
    };
    Doubles q = SumGroups(got.q), k = SumGroups(got.k);
    if (l2_) NormalizeBackward(raw_q_, q), NormalizeBackward(raw_k_, k);
    gradient(kind_.q, Gather(q, rows_ - 1));
    gradient(kind_.k, k);
    gradient(kind_.v, got.v);
    if (*kind_.g) gradient(kind_.g, Gather(got.decay, 0));
    gradient(kind_.erase, got.erase);
    gradient(kind_.strength, got.write);
    gradient("initial_state", StateBack(got.s0));
    gradient("initial_z", got.z0);
  }

 private:
  Doubles Values(const std::string& name) const {
    const Tensor* tensor = name.empty() ? nullptr : file_.Find(name);
    if (!tensor) return {};
    if (tensor->dtype == DType::kF64) {
      return Doubles(tensor->values<double>().begin(), tensor->values<double>().end());
    }
    return Doubles(tensor->f32().begin(), tensor->f32().end());
  }
  // A token of a product of delta rules is several positions of a scan: its numbers belong to the
  // one at `which`, the others are 0.
  Doubles Spread(const Doubles& x, size_t which) const {
    const size_t tokens = shape.batch * shape.length / rows_, width = x.size() / tokens;
    Doubles y(rows_ * x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      y[(i / width * rows_ + which) * width + i % width] = x[i];
    }
    return y;
  }
  Doubles Gather(const Doubles& y, size_t which) const {
    const size_t tokens = shape.batch * shape.length / rows_, width = y.size() / rows_ / tokens;
    Doubles x(tokens * width);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = y[(i / width * rows_ + which) * width + i % width];
    }
    return x;
  }
  // ssd keeps its state as [M, D].
  bool Flipped() const { return kind_.name == std::string("ssd"); }
  Doubles State(const Doubles& x) const {
    return Flipped() ? Transposed(x, shape.value_dim, shape.dim) : x;
  }
  Doubles StateBack(const Doubles& x) const {
    return Flipped() ? Transposed(x, shape.dim, shape.value_dim) : x;
  }
  Doubles SumGroups(const Doubles& x) const {
    Doubles y(x.size() / shape.group);
    for (size_t i = 0; i < x.size(); ++i) {
      y[i / shape.dim / shape.group * shape.dim + i % shape.dim] += x[i];
    }
    return y;
  }
  double Norm(const double* row) const {
    double sum = 1e-6;
    for (size_t d = 0; d < shape.dim; ++d) sum += row[d] * row[d];
    return std::sqrt(sum);
  }
  void Normalize(Doubles& x) const {
    for (auto row = x.data(); row < x.data() + x.size(); row += shape.dim) {
      const double norm = Norm(row);
      for (size_t d = 0; d < shape.dim; ++d) row[d] /= norm;
    }
  }
  void NormalizeBackward(const Doubles& x, Doubles& grad) const {
    for (size_t i = 0; i < x.size(); i += shape.dim) {
      const double norm = Norm(&x[i]);
      double dot = 0;
      for (size_t d = 0; d < shape.dim; ++d) dot += x[i + d] * grad[i + d];
      for (size_t d = 0; d < shape.dim; ++d) {
        grad[i + d] = (grad[i + d] - x[i + d] * dot / (norm * norm)) / norm;
      }
    }
  }

  const SafetensorsFile& file_;
  const Kind& kind_;
  size_t rows_;  // positions of the scan for each token
  double scale_;
  bool l2_;
  Doubles raw_q_, raw_k_;
};

// Runs the reference on every head.
Results RunReference(const Case& c) {
  const ScanShape& shape = c.shape;
  const size_t d = shape.dim, m = shape.value_dim;
  const ScanWidths width(c.options, d, m);
  const size_t tokens = shape.batch * shape.length * shape.heads;
  Results r;
  r.out.resize(tokens * m), r.v = r.out;
  r.q.resize(tokens * d), r.k = r.q;
  r.decay.resize(tokens * width.decay), r.erase.resize(tokens * width.erase);
  r.write.resize(tokens * width.write);
  for (size_t n = 0; n < shape.batch; ++n) {
    for (size_t h = 0; h < shape.heads; ++h) {
      // The rows of one head, of all heads or of a group of them.
      const auto rows = [&](const Doubles& x, size_t size, size_t group) {
        Doubles y;
        for (size_t t = 0; t < shape.length && size > 0; ++t) {
          const size_t row = (n * shape.length + t) * (shape.heads / group) + h / group;
          y.insert(y.end(), &x[row * size], &x[row * size] + size);
        }
        return y;
      };
      const auto put = [&](const Doubles& y, size_t size, Doubles& x) {
        for (size_t i = 0; i < y.size(); ++i) {
          x[((n * shape.length + i / size) * shape.heads + h) * size + i % size] = y[i];
        }
      };
      const auto state = [&](const Doubles& x, size_t size) {
        const double* at = x.data() + (n * shape.heads + h) * size;
        return Doubles(at, at + size);
      };
      const auto append = [](Doubles& to, const Doubles& x) {
        to.insert(to.end(), x.begin(), x.end());
      };
      ScanSequence x{.length = shape.length, .dim = d, .value_dim = m};
      x.options = c.options;
      x.options.scale = 1;  // in double
      x.q = rows(c.in.q, d, shape.group), x.k = rows(c.in.k, d, shape.group);
      for (double& q : x.q) q *= c.scale();
      x.v = rows(c.in.v, m, 1);
      x.decay = c.ConstantDecay() ? Doubles(shape.length, c.in.decay[h])
                                  : rows(c.in.decay, width.decay, 1);
      x.erase = rows(c.in.erase, width.erase, 1), x.write = rows(c.in.write, width.write, 1);
      x.s0 = state(c.in.s0, d * m), x.z0 = state(c.in.z0, d);
      const ScanRef ref(x);
      ScanSequence grad =
          ref.Gradients(rows(c.grad_out, m, 1), state(c.grad_s, d * m), state(c.grad_z, d));
      for (double& q : grad.q) q *= c.scale();
      put(ref.out(), m, r.out);
      put(grad.q, d, r.q), put(grad.k, d, r.k), put(grad.v, m, r.v);
      put(grad.decay, width.decay, r.decay), put(grad.erase, width.erase, r.erase);
      put(grad.write, width.write, r.write);
      append(r.s, ref.s()), append(r.z, ref.z());
      append(r.s0, grad.s0), append(r.z0, grad.z0);
    }
  }
  return r;
}

// Calls body(case) for each file of a known kind. At least one file of each kind must be there.
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

// The tensors are in double precision, computed from float inputs.
TEST(GatedGolden, ReferenceEqualsTensors) {
  ForCases([](const Case& c) { c.Expect(RunReference(c), 1e-12, 1e-11); });
}

}  // namespace
}  // namespace linnet::kernels
