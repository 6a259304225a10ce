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
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linnet/engine.h"
#include "linnet/export.h"
#include "linnet/sampling.h"
#include "linnet/vocabulary.h"

namespace linnet {

struct TextOptions {
  size_t tokens = 256;  // maximum number of tokens
  ChoiceOptions choice = {};
  uint64_t seed = 0, stream = 0;       // the random numbers are a function of both
  std::vector<std::string> stop = {};  // stop words: the text ends before the first that occurs
  // Called once, with the number of training positions, if TextWriter continues beyond them.
  std::function<void(size_t)> beyond_training = {};
};

// Why a text ended: the maximum TextOptions::tokens is reached, a stop word was written, the model
// drew the end token, the model has no position left, or the reader returned false.
enum class TextEnd { kTokens, kStop, kEndToken, kPositions, kReader };

class LINNET_API TextWriter {
 public:
  // Throws InputError for a model of another task. The engine must outlive this.
  explicit TextWriter(Engine& engine);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Continues a prompt ("": begins a new text). Calls reader(piece) with whole characters; the
  // reader returns false to stop. Throws InputError on a prompt that is not UTF-8 or too long.
  TextEnd Write(const std::string& prompt, const TextOptions& options,
                const std::function<bool(std::string_view)>& reader);

 private:
  Engine& engine_;
  Vocabulary vocabulary_;
};

// The vocabulary of a model of text or couplets. Throws InputError if the model has none.
LINNET_API Vocabulary VocabularyOf(const Model& model);

// The sum of -log p, in nats, of the tokens at index `counted` (>= 1) and later, each given all
// tokens before it. Throws InputError on more tokens than the model's positions plus one.
LINNET_API double NatsOf(Engine& engine, std::span<const int32_t> tokens, size_t counted);

}  // namespace linnet

#endif  // LINNET_TEXT_H_
