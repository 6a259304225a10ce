// CTC decoding (connectionist temporal classification, Graves et al. 2006): turns a distribution
// over phones at each frame into a sequence of phones. Also computes the phone error rate.
//
//   Decoded best = GreedyDecode(log_probs, classes, /*blank=*/0);
//   std::vector<Decoded> few = BeamDecode(log_probs, classes, 0, /*width=*/16);
//   ErrorRate errors;
//   errors.Add(utterance.phones, best.labels);
//   errors.rate()                                 // (S + D + I) / length of the references
//
// Here, a frame is a row of log_probs, that is, an output position of the model (linnet/speech.h).
// A path has one phone or the blank at each frame. Merging its repetitions and then removing its
// blanks gives the sequence that the path spells. The probability of a sequence is the sum of the
// probabilities of all paths that spell it.
#ifndef LINNET_TASKS_SPEECH_CTC_H_
#define LINNET_TASKS_SPEECH_CTC_H_

#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace linnet {

struct Decoded {
  std::vector<int> labels;
  std::vector<size_t> frames;  // the first frame of each label
  // Greedy: of the most likely path. Beam: of the sequence, summed over the paths that were kept.
  double log_probability = 0;
};

// The sequence that the most likely path spells. log_probs is [T, classes]; `blank` is the class of
// the blank, and all other classes are phones. Throws InputError if the size of log_probs is not a
// multiple of `classes`, or if `blank` is not a class.
Decoded GreedyDecode(std::span<const float> log_probs, size_t classes, int blank);

// The most likely sequences, best first, by prefix beam search: 1 to `width` of them. At each
// frame, the search keeps the `width` most likely prefixes, and for each prefix two sums: over its
// paths that end in a blank, and over its paths that end in a phone. The search is exact if `width`
// is large enough to keep all prefixes.
std::vector<Decoded> BeamDecode(std::span<const float> log_probs, size_t classes, int blank,
                                size_t width);

// A pair of aligned phones. An insertion has reference -1, a deletion has hypothesis -1.
struct Aligned {
  int reference, hypothesis;
  friend bool operator==(const Aligned&, const Aligned&) = default;
};
// Aligns by Levenshtein distance: each substitution, insertion and deletion costs 1. Among
// alignments of minimal cost, the choice is made from the end backwards: a match or substitution if
// possible, else a deletion, else an insertion.
std::vector<Aligned> Align(std::span<const int> reference, std::span<const int> hypothesis);

// Error counts over many utterances.
class ErrorRate {
 public:
  void Add(std::span<const int> reference, std::span<const int> hypothesis);

  size_t substitutions() const { return substitutions_; }
  size_t insertions() const { return insertions_; }
  size_t deletions() const { return deletions_; }
  size_t reference() const { return reference_; }  // phones in the references
  size_t errors() const { return substitutions_ + insertions_ + deletions_; }
  // errors() / reference(): 0 if both are 0, infinity if only reference() is 0.
  double rate() const;

  // Counts of the aligned pairs (reference, hypothesis) that differ, with -1 as in Aligned.
  const std::map<std::pair<int, int>, size_t>& confusions() const { return confusions_; }

 private:
  size_t substitutions_ = 0, insertions_ = 0, deletions_ = 0, reference_ = 0;
  std::map<std::pair<int, int>, size_t> confusions_;
};

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_CTC_H_
