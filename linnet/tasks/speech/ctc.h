// From a distribution over symbols at each frame to a sequence of symbols (connectionist temporal
// classification, Graves et al. 2006), and how far that is from what was said.
//
//   Decoded best = GreedyDecode(log_probs, classes, /*blank=*/0);
//   std::vector<Decoded> few = BeamDecode(log_probs, classes, 0, /*width=*/16);
//   ErrorRate errors;
//   errors.Add(utterance.phones, best.symbols);
//   errors.rate()                                 // (S + D + I) / symbols that were said
//
// A path has one symbol or the blank at each frame; it stands for what is left once repetitions are taken
// together and blanks taken away. A sequence's probability is the sum over the paths that stand for it.
#ifndef LINNET_TASKS_SPEECH_CTC_H_
#define LINNET_TASKS_SPEECH_CTC_H_

#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace linnet {

struct Decoded {
  std::vector<int> symbols;
  std::vector<size_t> frames;  // where each begins
  double log_probability = 0;  // greedy: of the one path; beam: of all paths that the search kept
};

// The most likely path. log_probs [T, classes]; blank: its class, and what remains are the symbols.
// Throws InputError where classes do not divide the numbers, or blank is none of them.
Decoded GreedyDecode(std::span<const float> log_probs, size_t classes, int blank);

// The most likely sequences, the best one first: prefix beam search, which keeps `width` prefixes at
// each frame, paths that end in a blank and paths that do not counted apart. At most `width` of them, one
// at least. With a width that keeps all prefixes it is exact.
std::vector<Decoded> BeamDecode(std::span<const float> log_probs, size_t classes, int blank,
                                size_t width);

// What stands beside what in an alignment of least cost; -1: nothing.
struct Aligned {
  int reference, hypothesis;
  friend bool operator==(const Aligned&, const Aligned&) = default;
};
// By Levenshtein's distance, in which each substitution, insertion and deletion costs 1. Of several
// alignments that cost the same, the one with most substitutions from the end.
std::vector<Aligned> Align(std::span<const int> reference, std::span<const int> hypothesis);

// Counts over many utterances.
class ErrorRate {
 public:
  void Add(std::span<const int> reference, std::span<const int> hypothesis);

  size_t substitutions() const { return substitutions_; }
  size_t insertions() const { return insertions_; }
  size_t deletions() const { return deletions_; }
  size_t reference() const { return reference_; }  // symbols that were said
  size_t errors() const { return substitutions_ + insertions_ + deletions_; }
  // errors() / reference(): 0 where both are 0, infinite where only nothing was said.
  double rate() const;

  // How often (said, heard) stood together, -1 being nothing, where they differ.
  const std::map<std::pair<int, int>, size_t>& confusions() const { return confusions_; }

 private:
  size_t substitutions_ = 0, insertions_ = 0, deletions_ = 0, reference_ = 0;
  std::map<std::pair<int, int>, size_t> confusions_;
};

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_CTC_H_
