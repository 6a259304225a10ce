// Second lines of couplets from a trained model.
//
//   CoupletWriter writer(engine);
//   for (const Answer& answer : writer.Answer("海上明月", {.candidates = 5})) ...   // the best one first
//
// The first line is read once; candidates are forks of the state behind it. A second line has as many
// characters as the first one, punctuation where that has it and nowhere else, and no character of its own
// where the first one has the same: what breaks these rules is never written.
#ifndef LINNET_RUNTIME_COUPLET_H_
#define LINNET_RUNTIME_COUPLET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "linnet/model/vocabulary.h"
#include "linnet/runtime/choice.h"
#include "linnet/runtime/engine.h"

namespace linnet {

struct CoupletOptions {
  size_t candidates = 1;
  // 0: each candidate is drawn on its own, as `choice` says; more: beam search that keeps so many (1: greedy).
  size_t beam = 16;
  ChoiceOptions choice = {};
  uint64_t seed = 0;
};

struct Answer {
  std::string text = {};
  double log_probability = 0;  // of the characters, as the model has them before the rules
  size_t characters = 0;       // that it is the sum over: those that are no punctuation
};

class CoupletWriter {
 public:
  // Throws InputError for a model of another task. The engine must outlive this.
  explicit CoupletWriter(Engine& engine);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Answers to a first line, the likeliest first, no two alike; there may be fewer than were asked for.
  // Throws InputError on a line that is empty, no UTF-8, or longer than the model's positions allow.
  // Characters that the vocabulary does not have are read as unknown ones.
  std::vector<Answer> Write(const std::string& first, const CoupletOptions& options = {});

 private:
  struct Line;  // what is known of the first line at each place

  std::vector<Answer> Search(const Line& line, const CoupletOptions& options);
  std::vector<Answer> Draw(const Line& line, const CoupletOptions& options);
  // Logits of what place `at` may hold: -infinity elsewhere; `used`: what stands before it.
  void Allow(const Line& line, size_t at, std::span<const int32_t> used,
             std::span<float> logits) const;

  Engine& engine_;
  Vocabulary vocabulary_;
  std::vector<bool> punctuation_;  // of each symbol
};

// Whether a character is punctuation, in Chinese or Latin text.
bool IsPunctuation(char32_t c);

}  // namespace linnet

#endif  // LINNET_RUNTIME_COUPLET_H_
