// Writes second lines of couplets with a trained model.
//
//   linnet::CoupletWriter writer(engine);
//   for (const linnet::CoupletAnswer& answer : writer.Write("海上明月", {.candidates = 5})) {
//     std::puts(answer.text.c_str());                        // the most likely first
//   }
//
// The first line is read once; candidates are forks of the state after it. Second lines always obey
// these rules: they have as many characters as the first line, punctuation at exactly the same
// places, no character at the same place as in the first line, and repeat characters exactly where
// the first line does.
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
  size_t candidates = 1;
  // Width of the beam search (1: greedy), and the maximum number of candidates that it finds. 0: no
  // search; each candidate is sampled independently, with `choice`.
  size_t beam = 16;
  ChoiceOptions choice = {};
  uint64_t seed = 0;
  // False: candidates are drawn without the rules until the model ends them, which shows how much
  // of the rules it has learned. Beam search needs the rules: without them `beam` is ignored.
  bool rules = true;
};

// A second line.
struct CoupletAnswer {
  std::string text = {};
  // Sum of the model's log-probabilities of the characters, in nats, not renormalized over the
  // characters that the rules allow; and its number of terms. With rules, punctuation is copied and
  // has no term.
  double log_probability = 0;
  size_t characters = 0;
};

class LINNET_API CoupletWriter {
 public:
  // Throws InputError for a model of another task. The engine must outlive this.
  explicit CoupletWriter(Engine& engine);
  ~CoupletWriter();

  const Vocabulary& vocabulary() const;
  // The characters of a first line that are read as the unknown token, each once, in order.
  std::vector<std::string> Unknown(const std::string& first) const;

  // Answers to a first line (blanks are ignored), the most likely first, without duplicates;
  // possibly fewer than requested. Throws InputError on a line that is empty, not UTF-8, or longer
  // than the model's positions allow.
  std::vector<CoupletAnswer> Write(const std::string& first, const CoupletOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet

#endif  // LINNET_COUPLET_H_
