// Parts of couplet generation that CoupletWriter (linnet/couplet.h) and the server share.
//
//   const CoupletTokens tokens(model);
//   const CoupletLine line(tokens, "海上明月");
//   CoupletDraft draft(line, {.temperature = 0.7f}, seed, stream);
//   const int32_t token = draft.Next(logits);
#ifndef LINNET_TASKS_COUPLET_COUPLET_H_
#define LINNET_TASKS_COUPLET_COUPLET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "linnet/couplet.h"
#include "linnet/rng.h"

namespace linnet {

// A model's vocabulary, and its punctuation tokens. Throws InputError for a model of another task.
struct CoupletTokens {
  explicit CoupletTokens(const Model& model);

  Vocabulary vocabulary;
  std::vector<bool> punctuation;
  std::vector<int32_t> unwritten;  // never drawn: special tokens, and punctuation, which is copied
  size_t longest;                  // maximum length of a first line, in characters
  int32_t comma;     // read for punctuation outside the vocabulary; kUnknown without a comma in it
  std::string path;  // of the model, for messages
};

// Removes blanks, which some data sets write between characters. Throws InputError, with a message
// that begins with `what`, on text that is not UTF-8 or has control characters.
std::string WithoutBlanks(const std::string& text, const std::string& what = "the first line");

// A first line, and the tokens allowed at each place of the second line.
class CoupletLine {
 public:
  // Throws InputError on a line that is empty, not UTF-8, or longer than the model's positions
  // allow. The tokens must outlive this.
  CoupletLine(const CoupletTokens& tokens, const std::string& first);

  size_t size() const { return read_.size(); }  // characters
  std::vector<int32_t> Prompt() const;          // the line and the separator
  bool punctuation(size_t at) const { return punctuation_[at]; }
  int32_t token(size_t at) const { return read_[at]; }
  const std::string& character(size_t at) const { return characters_[at]; }  // as given
  // The text of a token at a place; punctuation is copied from the first line.
  std::string Text(size_t at, int32_t token) const;
  const CoupletTokens& tokens() const { return tokens_; }
  // The characters outside the vocabulary whose simplified forms are outside too, each once, in
  // order. All are read as the unknown token.
  std::vector<std::string> Unknown() const;
  // Sets the logits of tokens not allowed at place `at` of the second line to -infinity.
  // `used`: the second line's tokens before that place.
  void Allow(size_t at, std::span<const int32_t> used, std::span<float> logits) const;

 private:
  // Whether the model reads two places as the same character; unknown characters are compared as
  // given.
  bool Same(size_t i, size_t j) const;

  const CoupletTokens& tokens_;
  std::vector<int32_t> read_;
  std::vector<std::string> characters_;  // as given
  std::vector<bool> punctuation_;
};

// A second line in progress, drawn character by character.
class CoupletDraft {
 public:
  // The line must outlive this. The draws are a function of seed and stream. Without rules, any
  // token except the unknown token and the separator is allowed anywhere, up to twice the first
  // line's length and the model's positions.
  CoupletDraft(const CoupletLine& line, const ChoiceOptions& choice, uint64_t seed, uint64_t stream,
               bool rules = true)
      : line_(&line), choice_(choice), rng_(seed, stream), rules_(rules) {}

  // The next token, from the head's outputs at the previous token (at first: at the separator).
  // Throws InputError if the rules allow no token.
  int32_t Next(std::span<const float> outputs);
  bool done() const { return done_; }
  const std::string& last() const { return last_; }  // the text of the token from Next()
  const CoupletAnswer& answer() const { return answer_; }

 private:
  const CoupletLine* line_;
  ChoiceOptions choice_;
  Philox rng_;
  bool rules_, done_ = false;
  std::vector<int32_t> tokens_;
  std::vector<float> allowed_;
  std::string last_;
  CoupletAnswer answer_;
};

// Sorts answers, the most likely first, and removes duplicates.
std::vector<CoupletAnswer> Distinct(std::vector<CoupletAnswer> answers);

}  // namespace linnet

#endif  // LINNET_TASKS_COUPLET_COUPLET_H_
