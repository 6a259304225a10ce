// Parts of couplet generation that CoupletWriter (linnet/couplet.h) and the server share.
//
//   const CoupletTokens tokens(model);
//   const CoupletLine line(tokens, "海上明月");
//   CoupletDraft draft(line, {.temperature = 0.7f}, seed, stream);
//   const int32_t token = draft.Next(logits);   // logits: the model's outputs after line.Prompt()
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

// A model's vocabulary, and the roles of its tokens in couplets. Throws InputError for a model of
// another task and for a byte-pair vocabulary.
struct CoupletTokens {
  explicit CoupletTokens(const Model& model);

  Vocabulary vocabulary;
  std::vector<bool> punctuation;   // whether a token is punctuation
  std::vector<int32_t> unwritten;  // never drawn: special tokens, and punctuation, which is copied
  size_t longest;                  // maximum length of a first line, in characters
  // Maximum length of both lines together; 0: each line has positions of its own (encoder-decoder).
  size_t longest_pair;
  // The token of "，", which replaces punctuation outside the vocabulary; kUnknown if the
  // vocabulary has no comma either.
  int32_t comma;
  std::string path;  // of the model, for messages
};

// Removes blanks, which some data sets write between characters. Throws InputError, with a message
// that begins with `what`, on text that is not UTF-8 or has control characters.
std::string WithoutBlanks(const std::string& text, const std::string& what = "the first line");

// A first line, and the tokens allowed at each place of the second line.
class CoupletLine {
 public:
  // Throws InputError on a line that is empty, not UTF-8, or longer than the model's positions
  // allow. `tokens` must outlive this object.
  CoupletLine(const CoupletTokens& tokens, const std::string& first);

  size_t size() const { return read_.size(); }  // characters
  std::vector<int32_t> Prompt() const;          // the line's tokens and the separator
  bool punctuation(size_t at) const { return punctuation_[at]; }
  // The token that the model reads for the character at place `at`.
  int32_t token(size_t at) const { return read_[at]; }
  const std::string& character(size_t at) const { return characters_[at]; }  // in the given line
  // The text of `token` at place `at` of the second line. If the first line has punctuation there,
  // the text is that punctuation, whatever the token.
  std::string Text(size_t at, int32_t token) const;
  const CoupletTokens& tokens() const { return tokens_; }
  // The characters that the model reads as the unknown token, each once, in order. The vocabulary
  // has neither such a character nor its simplified form.
  std::vector<std::string> Unknown() const;
  // Applies the rules (linnet/couplet.h) to the choice of the second line's token at place `at`:
  // sets the logits of all tokens not allowed there to -infinity. `used`: the second line's tokens
  // before that place.
  void Allow(size_t at, std::span<const int32_t> used, std::span<float> logits) const;

 private:
  // Whether the model reads the same character at places i and j of the first line. Characters that
  // it reads as the unknown token share that token, so Same() compares them in the given line.
  bool Same(size_t i, size_t j) const;

  const CoupletTokens& tokens_;
  std::vector<int32_t> read_;            // the tokens that the model reads, one per character
  std::vector<std::string> characters_;  // of the given line, not simplified
  std::vector<bool> punctuation_;
};

// A second line in progress, drawn character by character.
class CoupletDraft {
 public:
  // The line must outlive this object. The draws are a function of seed and stream. Without rules,
  // every token except the unknown token and the separator is allowed anywhere, and the second line
  // ends at the end token or at twice the length of the first, within the model's positions.
  CoupletDraft(const CoupletLine& line, const ChoiceOptions& choice, uint64_t seed, uint64_t stream,
               bool rules = true)
      : line_(&line), choice_(choice), rng_(seed, stream), rules_(rules) {}

  // Chooses the next token from the head's outputs at the previous token; in the first call, from
  // those at the separator. Throws InputError if the rules allow no token.
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
  std::vector<float> allowed_;  // the outputs, with -infinity for tokens that are not allowed
  std::string last_;
  CoupletAnswer answer_;
};

// Sorts answers, the most likely first, and removes duplicates.
std::vector<CoupletAnswer> Distinct(std::vector<CoupletAnswer> answers);

}  // namespace linnet

#endif  // LINNET_TASKS_COUPLET_COUPLET_H_
