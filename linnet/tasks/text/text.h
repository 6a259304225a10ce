// Parts of text generation that TextWriter (linnet/text.h) and the server share.
//
//   TextDraft draft(vocabulary, {.tokens = 200});
//   const std::optional<int32_t> token = draft.Next(logits, shown);
#ifndef LINNET_TASKS_TEXT_TEXT_H_
#define LINNET_TASKS_TEXT_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/grammar.h"
#include "linnet/text.h"

namespace linnet {

// Joins the texts of tokens into whole characters, and holds back text that may be the beginning of
// a stop string.
class TextPieces {
 public:
  explicit TextPieces(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  // Adds the text of a token; returns the text that can be shown now.
  std::string Add(std::string_view text);
  bool stopped() const { return stopped_; }  // a stop string was found
  // Ends the text and returns the text held back; incomplete characters become U+FFFD.
  std::string Finish();

 private:
  std::vector<std::string> stop_;
  std::string held_;
  bool stopped_ = false;
};

// A text in progress: chooses the next token, and tracks the text that can be shown.
class TextDraft {
 public:
  // The vocabulary must outlive this object. Throws InputError on invalid options.
  TextDraft(const Vocabulary& vocabulary, const TextOptions& options);

  // Chooses the token to read next, from the head's outputs at the previous token; nullopt at the
  // end of the text. Appends the text that can be shown to `shown`: whole characters only.
  std::optional<int32_t> Next(std::span<const float> outputs, std::string& shown);
  // Ends the text early: the model has no position left, or the request was canceled. Appends the
  // text held back.
  void Stop(std::string& shown);
  TextEnd end() const { return end_; }  // valid after Next() returned nullopt, and after Stop()
  size_t tokens() const { return tokens_; }
  int32_t last() const { return last_; }  // the token drawn last; valid if tokens() > 0
  // The options and the random numbers with which the next token will be drawn.
  const ChoiceOptions& choice() const { return choice_; }
  const Philox& rng() const { return rng_; }

 private:
  const Vocabulary* vocabulary_;
  ChoiceOptions choice_;
  size_t most_, tokens_ = 0;  // most_: maximum of tokens_
  int32_t last_ = Vocabulary::kEnd;
  Philox rng_;
  std::unique_ptr<TokenRule> rule_;  // null: any text
  TextPieces pieces_;
  std::vector<float> allowed_;  // the outputs, -infinity for tokens that are never drawn
  TextEnd end_ = TextEnd::kPositions;
};

// The tokens that the model reads for a prompt: the tokens that begin a text, then the prompt's
// tokens. Throws InputError on a prompt that is not UTF-8 or too long for the model.
std::vector<int32_t> TextPrompt(const Model& model, const Vocabulary& vocabulary,
                                const std::string& prompt);
// The same for a prompt that is given as tokens, all within the vocabulary.
std::vector<int32_t> TextPrompt(const Model& model, const Vocabulary& vocabulary,
                                const std::vector<int32_t>& prompt);

// The lines of `linnet info` about the vocabulary (Task::describe).
std::vector<std::pair<std::string, std::string>> DescribeText(const ModelSpec& spec);

}  // namespace linnet

#endif  // LINNET_TASKS_TEXT_TEXT_H_
