#include "linnet/tasks/speech/ctc.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "linnet/error.h"

namespace linnet {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Checks the arguments, and returns the number of frames in log_probs.
size_t Frames(std::span<const float> log_probs, size_t classes, int blank) {
  if (classes == 0 || log_probs.size() % classes != 0) {
    throw InputError(log_probs.size(), " log-probabilities are not a whole number of frames of ",
                     classes, " classes");
  }
  if (blank < 0 || static_cast<size_t>(blank) >= classes) {
    throw InputError("the blank ", blank, " is not one of the classes 0 .. ",
                     static_cast<int64_t>(classes) - 1);
  }
  return log_probs.size() / classes;
}

// log(e^a + e^b)
double LogAdd(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kNever ? a : a + std::log1p(std::exp(b - a));
}

struct Prefix {
  // Logarithms of two sums of path probabilities: over paths that end in a blank, and over paths
  // that end in a phone.
  double blank = kNever, label = kNever;
  // At each frame, up to three extensions lead to this prefix: the prefix without its last phone,
  // extended by that phone, and this prefix, extended by a blank or by its last phone again.
  // `frames` is taken from the most likely of these extensions.
  std::vector<size_t> frames = {};  // the phones' first frames
  double seen = kNever;             // log-probability of the most likely extension so far

  double total() const { return LogAdd(blank, label); }
};
using Prefixes = std::map<std::vector<int>, Prefix>;

}  // namespace

Decoded GreedyDecode(std::span<const float> log_probs, size_t classes, int blank) {
  const size_t frames = Frames(log_probs, classes, blank);
  Decoded decoded;
  int before = blank;
  for (size_t t = 0; t < frames; ++t) {
    const auto row = log_probs.subspan(t * classes, classes);
    const auto best = std::max_element(row.begin(), row.end());
    const int label = static_cast<int>(best - row.begin());
    decoded.log_probability += *best;
    if (label != blank && label != before) {
      decoded.labels.push_back(label);
      decoded.frames.push_back(t);
    }
    before = label;
  }
  return decoded;
}

std::vector<Decoded> BeamDecode(std::span<const float> log_probs, size_t classes, int blank,
                                size_t width) {
  const size_t frames = Frames(log_probs, classes, blank);
  if (width == 0) throw InputError("the width of a beam must be at least 1");
  Prefixes beam;
  beam[{}] = {.blank = 0, .seen = 0};
  for (size_t t = 0; t < frames; ++t) {
    const auto row = log_probs.subspan(t * classes, classes);
    Prefixes next;
    for (const auto& [labels, prefix] : beam) {
      // Extends the prefix's paths by a blank or by its last phone. Neither changes the prefix.
      // Clang 14 captures structured bindings only in this form.
      const auto stay = [&next, &same_labels = labels, &old = prefix](double log_probability,
                                                                      double Prefix::*ending) {
        Prefix& same = next[same_labels];
        same.*ending = LogAdd(same.*ending, log_probability);
        if (log_probability > same.seen) {
          same.seen = log_probability, same.frames = old.frames;
        }
      };
      stay(prefix.total() + row[static_cast<size_t>(blank)], &Prefix::blank);
      if (!labels.empty()) {
        stay(prefix.label + row[static_cast<size_t>(labels.back())], &Prefix::label);
      }
      for (int c = 0; static_cast<size_t>(c) < classes; ++c) {
        if (c == blank) continue;
        // The same phone again is a new phone only after a blank.
        const bool repeats = !labels.empty() && labels.back() == c;
        const double from = repeats ? prefix.blank : prefix.total();
        const double log_probability = from + row[static_cast<size_t>(c)];
        if (!(log_probability > kNever)) continue;
        std::vector<int> longer = labels;
        longer.push_back(c);
        Prefix& extended = next[longer];
        extended.label = LogAdd(extended.label, log_probability);
        if (log_probability > extended.seen) {
          extended.seen = log_probability;
          extended.frames = prefix.frames;
          extended.frames.push_back(t);
        }
      }
    }
    std::vector<Prefixes::iterator> ranked;
    for (auto at = next.begin(); at != next.end(); ++at) ranked.push_back(at);
    std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
      return a->second.total() > b->second.total();
    });
    beam.clear();
    for (size_t i = 0; i < std::min(width, ranked.size()); ++i) {
      beam.insert(next.extract(ranked[i]));
    }
  }
  std::vector<Decoded> best;
  for (const auto& [labels, prefix] : beam) {
    best.push_back({labels, prefix.frames, prefix.total()});
  }
  std::stable_sort(best.begin(), best.end(), [](const Decoded& a, const Decoded& b) {
    return a.log_probability > b.log_probability;
  });
  return best;
}

std::vector<Aligned> Align(std::span<const int> reference, std::span<const int> hypothesis) {
  const size_t rows = reference.size() + 1, columns = hypothesis.size() + 1;
  // at(r, h): minimal cost of aligning the first r reference phones with the first h hypothesis
  // phones.
  std::vector<size_t> cost(rows * columns);
  const auto at = [&](size_t r, size_t h) -> size_t& { return cost[r * columns + h]; };
  for (size_t r = 0; r < rows; ++r) {
    for (size_t h = 0; h < columns; ++h) {
      if (r == 0 || h == 0) {
        at(r, h) = r + h;
        continue;
      }
      const size_t replaced = at(r - 1, h - 1) + (reference[r - 1] != hypothesis[h - 1]);
      at(r, h) = std::min({replaced, at(r - 1, h) + 1, at(r, h - 1) + 1});
    }
  }
  std::vector<Aligned> aligned;
  for (size_t r = rows - 1, h = columns - 1; r > 0 || h > 0;) {
    if (r > 0 && h > 0 && at(r, h) == at(r - 1, h - 1) + (reference[r - 1] != hypothesis[h - 1])) {
      aligned.push_back({reference[--r], hypothesis[--h]});
    } else if (r > 0 && at(r, h) == at(r - 1, h) + 1) {
      aligned.push_back({reference[--r], -1});
    } else {
      aligned.push_back({-1, hypothesis[--h]});
    }
  }
  std::reverse(aligned.begin(), aligned.end());
  return aligned;
}

void ErrorRate::Add(std::span<const int> reference, std::span<const int> hypothesis) {
  reference_ += reference.size();
  for (const Aligned& pair : Align(reference, hypothesis)) {
    if (pair.reference == pair.hypothesis) continue;
    substitutions_ += pair.reference >= 0 && pair.hypothesis >= 0;
    insertions_ += pair.reference < 0;
    deletions_ += pair.hypothesis < 0;
    ++confusions_[{pair.reference, pair.hypothesis}];
  }
}

double ErrorRate::rate() const {
  if (errors() == 0) return 0;
  if (reference_ == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(errors()) / static_cast<double>(reference_);
}

}  // namespace linnet
