// Text with a trained language model: generation token by token, and the likelihood of given text.
//
//   linnet::TextWriter writer(engine);
//   writer.Write("ROMEO:", {.tokens = 200, .choice = {.temperature = 0.8f}},
//                [](std::string_view piece) { std::cout << piece; return true; });
#ifndef LINNET_TEXT_H_
#define LINNET_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linnet/engine.h"
#include "linnet/export.h"
#include "linnet/sampling.h"
#include "linnet/vocabulary.h"

namespace linnet {

class Grammar;

// Guesses the next tokens of texts (speculative decoding).
class LINNET_API Drafter {
 public:
  virtual ~Drafter();
  // Guesses up to `count` tokens that follow `text`, which is not empty. Returns fewer, or none, if
  // it has no good guess; guesses beyond `count` are ignored. The model chooses each token by
  // `choice` with the next random number of `rng`, so a drafter that draws in the same way guesses
  // right more often. Consecutive calls usually extend the text; a drafter must accept any text.
  virtual std::vector<int32_t> Guess(std::span<const int32_t> text, size_t count,
                                     const ChoiceOptions& choice, Philox rng) = 0;
};
// Returns a drafter that draws its guesses from a small model, for a larger one. Throws InputError
// if their vocabularies differ. The engine must outlive the drafter.
LINNET_API std::unique_ptr<Drafter> MakeDrafter(Engine& small, const Model& large);
// Returns a drafter that guesses the tokens that followed the previous occurrence of the text's
// last four tokens (prompt lookup).
LINNET_API std::unique_ptr<Drafter> MakeRepeater();

struct TextOptions {
  size_t tokens = 256;  // maximum number of tokens
  ChoiceOptions choice = {};
  uint64_t seed = 0, stream = 0;       // the random numbers are a function of both
  std::vector<std::string> stop = {};  // stop strings: the text ends before the first that occurs
  // The text follows this grammar (linnet/grammar.h), which must outlive the call; null: any text.
  const Grammar* grammar = nullptr;
  // Called once, with the number of training positions, when the text continues beyond them.
  std::function<void(size_t)> beyond_training = {};
  // Speculative decoding: the drafter guesses tokens, and the model reads several in one pass. The
  // text is the same, to the byte, as without a drafter. Each pass with guesses copies the state,
  // which is large for softmax attention and long texts. Null: no drafter.
  Drafter* drafter = nullptr;
  size_t guesses = 2;  // maximum number of tokens guessed at a time
};

// Why a text ended: the maximum TextOptions::tokens is reached, a stop string occurred, the model
// drew the end token, the model has no position left, the reader returned false, or nothing can
// follow in the grammar.
enum class TextEnd { kTokens, kStop, kEndToken, kPositions, kReader, kGrammar };

class LINNET_API TextWriter {
 public:
  // Throws InputError for a model of another task. The engine must outlive this.
  explicit TextWriter(Engine& engine);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Continues a prompt ("": begins a new text). Calls reader(piece) with whole characters; the
  // reader returns false to stop. Throws InputError on a prompt that is not UTF-8 or too long.
  TextEnd Write(const std::string& prompt, const TextOptions& options,
                const std::function<bool(std::string_view)>& reader);

  // The number of tokens guessed in the last call of Write(), and how many of them were right.
  size_t guessed() const { return guessed_; }
  size_t accepted() const { return accepted_; }

 private:
  Engine& engine_;
  Vocabulary vocabulary_;
  size_t guessed_ = 0, accepted_ = 0;
};

// The vocabulary of a model of text or couplets. Throws InputError if the model has none.
LINNET_API Vocabulary VocabularyOf(const Model& model);

// The sum of -log p, in nats, of the tokens at index `counted` (>= 1) and later, each given all
// tokens before it. Throws InputError on more tokens than the model's positions plus one.
LINNET_API double NatsOf(Engine& engine, std::span<const int32_t> tokens, size_t counted);

}  // namespace linnet

#endif  // LINNET_TEXT_H_
