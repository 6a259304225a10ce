// Second lines of couplets from a trained model.
//
//   CoupletWriter writer(engine);
//   for (const Answer& answer : writer.Answer("海上明月", {.candidates = 5})) ...   // the best one first
//
// The first line is read once; candidates are forks of the state behind it. A second line has as many
// characters as the first one, punctuation where that has it and nowhere else, no character where the first
// one has the same, and repeats one where the first one does, only there: what breaks these rules is never
// written.
#ifndef LINNET_TASKS_COUPLET_COUPLET_H_
#define LINNET_TASKS_COUPLET_COUPLET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "linnet/model/vocabulary.h"
#include "linnet/runtime/choice.h"
#include "linnet/runtime/engine.h"

namespace linnet {

struct CoupletOptions {
  size_t candidates = 1;
  // 0: each candidate is drawn on its own, as `choice` says; more: beam search that keeps so many (1: greedy),
  // and finds no more candidates than that.
  size_t beam = 16;
  ChoiceOptions choice = {};
  uint64_t seed = 0;
  // Without rules candidates are drawn as the model has them, until it ends them: what it learnt of the
  // rules shows. (Beams are of lines that keep them.)
  bool rules = true;
};

struct Answer {
  std::string text = {};
  double log_probability = 0;  // of the characters, as the model has them before the rules
  size_t characters = 0;       // that it is the sum over: those that are no punctuation
};

// A model's symbols, and which of them are punctuation. Throws InputError for a model of another task.
struct CoupletSymbols {
  explicit CoupletSymbols(const Model& model);

  Vocabulary vocabulary;
  std::vector<bool> punctuation;
  std::vector<int32_t> unwritten;  // what no second line has but where the first one has it
  size_t longest;                  // first line that there are positions for, in characters
  int32_t comma;     // what stands for punctuation that the vocabulary does not have; or kUnknown
  std::string path;  // of the model, for messages
};

// A first line without blanks, which verse is sometimes written with. Throws InputError, beginning with
// `what`, on text that is no UTF-8 or holds control characters.
std::string WithoutBlanks(const std::string& text, const std::string& what = "the first line");

// A first line, and what may stand at each place of the second one.
class CoupletLine {
 public:
  // Throws InputError on a line that is empty, no UTF-8, or longer than the model's positions allow.
  // The symbols must outlive this.
  CoupletLine(const CoupletSymbols& symbols, const std::string& first);

  size_t size() const { return read_.size(); }  // characters
  std::vector<int32_t> Prompt() const;          // the line and the separator
  bool punctuation(size_t at) const { return punctuation_[at]; }
  int32_t symbol(size_t at) const { return read_[at]; }
  const std::string& character(size_t at) const { return characters_[at]; }  // as it was given
  // What is written at a place for a symbol: of punctuation, what stands in the first line.
  std::string Text(size_t at, int32_t symbol) const;
  const CoupletSymbols& symbols() const { return symbols_; }
  // The characters that the vocabulary does not have, each once, as they are met. All are read as one symbol.
  std::vector<std::string> Unknown() const;
  // Lowers what place `at` may not hold to -infinity; `used`: the symbols before it.
  void Allow(size_t at, std::span<const int32_t> used, std::span<float> logits) const;

 private:
  const CoupletSymbols& symbols_;
  std::vector<int32_t> read_;
  std::vector<std::string> characters_;  // as they were given
  std::vector<bool> punctuation_;
};

// A second line that is being drawn, character by character.
class CoupletDraft {
 public:
  // The line must outlive this. What is drawn is a function of seed and stream. Without rules anything
  // but unknown characters and separators may stand anywhere, and twice the first line's length is the most.
  CoupletDraft(const CoupletLine& line, const ChoiceOptions& choice, uint64_t seed, uint64_t stream,
               bool rules = true)
      : line_(&line), choice_(choice), rng_(seed, stream), rules_(rules) {}

  // The next symbol, from the head's outputs at the one before it (at first: at the separator). Throws
  // InputError where the rules leave none.
  int32_t Next(std::span<const float> outputs);
  bool done() const { return done_; }
  const std::string& last() const { return last_; }  // the text of the symbol that Next() gave
  const Answer& answer() const { return answer_; }

 private:
  const CoupletLine* line_;
  ChoiceOptions choice_;
  Philox rng_;
  bool rules_, done_ = false;
  std::vector<int32_t> symbols_;
  std::vector<float> allowed_;
  std::string last_;
  Answer answer_;
};

class CoupletWriter {
 public:
  // Throws InputError for a model of another task. The engine must outlive this.
  explicit CoupletWriter(Engine& engine) : engine_(engine), symbols_(engine.model()) {}

  const Vocabulary& vocabulary() const { return symbols_.vocabulary; }
  const CoupletSymbols& symbols() const { return symbols_; }

  // Answers to a first line (its blanks do not count), the likeliest first, no two alike; there may be fewer than were asked for.
  // Throws InputError as CoupletLine() does. Characters that the vocabulary does not have are read as
  // unknown ones.
  std::vector<Answer> Write(const std::string& first, const CoupletOptions& options = {});

 private:
  struct Begun;  // what is known behind the separator

  std::vector<Answer> Search(const CoupletLine& line, const Begun& begun,
                             const CoupletOptions& options);
  std::vector<Answer> Draw(const CoupletLine& line, const Begun& begun,
                           const CoupletOptions& options);

  Engine& engine_;
  CoupletSymbols symbols_;
};

// The likeliest first, each once.
std::vector<Answer> Distinct(std::vector<Answer> answers);

// Whether a character is punctuation, in Chinese or Latin text.
bool IsPunctuation(char32_t c);

}  // namespace linnet

#endif  // LINNET_TASKS_COUPLET_COUPLET_H_
