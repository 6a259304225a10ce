// Writes second lines of couplets with a trained model.
//
//   linnet::CoupletWriter writer(engine);
//   for (const linnet::CoupletAnswer& answer : writer.Write("海上明月", {.candidates = 5})) {
//     std::puts(answer.text.c_str());                        // the most likely first
//   }
//
// The first line is read once; candidates are forks of the state after it. Second lines obey these
// rules, unless CoupletOptions::rules is false. A second line has as many characters as the first
// line and the same punctuation at the same places. All its other characters differ from the first
// line's at the same places. A second line repeats characters exactly where the first line does.
//
// A model of simplified characters accepts a first line in traditional characters: a character
// outside the vocabulary is read as its simplified form if the vocabulary has that form. The rules
// treat both forms as the same character.
#ifndef LINNET_COUPLET_H_
#define LINNET_COUPLET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "linnet/engine.h"
#include "linnet/export.h"
#include "linnet/sampling.h"
#include "linnet/vocabulary.h"

namespace linnet {

struct CoupletOptions {
  size_t candidates = 1;  // maximum number of second lines, at least 1
  // Width of the beam search (1: greedy), and the maximum number of candidates that it finds. 0: no
  // search; each candidate is sampled independently, with `choice`.
  size_t beam = 16;
  ChoiceOptions choice = {};
  uint64_t seed = 0;
  // False: ignores the rules and `beam`. Each candidate is sampled with `choice` until the model
  // draws the end token or the line gets too long. This shows how well the model has learned the
  // rules.
  bool rules = true;
};

// A second line.
struct CoupletAnswer {
  std::string text = {};
  // Sum of the log-probabilities of the characters, in nats. They are the model's own: not
  // renormalized over the characters that the rules allow.
  double log_probability = 0;
  // Number of characters in that sum. With rules, punctuation is copied and not counted.
  size_t characters = 0;
  // The log-probability of each character of `text`; 0 for copied punctuation. Without rules, their
  // sum lacks the end token's, which log_probability includes.
  std::vector<double> scores = {};
};

class LINNET_API CoupletWriter {
 public:
  // Throws InputError for a model of another task. The engine must outlive this.
  explicit CoupletWriter(Engine& engine);
  ~CoupletWriter();

  const Vocabulary& vocabulary() const;
  // The characters of a first line that the model reads as the unknown token, each once, in order.
  std::vector<std::string> Unknown(const std::string& first) const;

  // Writes second lines for a first line, whose blanks are ignored. The answers are distinct, the
  // most likely first, possibly fewer than options.candidates. Throws InputError on a line that is
  // empty, not UTF-8, has control characters, or is longer than the model's positions allow.
  std::vector<CoupletAnswer> Write(const std::string& first, const CoupletOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet

#endif  // LINNET_COUPLET_H_
