// Text with a trained language model: writing it, symbol by symbol, and how well it is foreseen.
//
//   TextWriter writer(engine);
//   writer.Write("ROMEO:", {.symbols = 200, .choice = {.temperature = 0.8f}},
//                [](std::string_view piece) { std::cout << piece; return true; });
#ifndef LINNET_TASKS_TEXT_TEXT_H_
#define LINNET_TASKS_TEXT_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/model/vocabulary.h"
#include "linnet/runtime/choice.h"
#include "linnet/runtime/engine.h"

namespace linnet {

struct TextOptions {
  size_t symbols = 256;  // at most
  ChoiceOptions choice = {};
  uint64_t seed = 0, stream = 0;       // what is drawn is a function of both
  std::vector<std::string> stop = {};  // ends before one of these would stand in the text
  // Called once, where TextWriter goes on behind the positions of training, with their number.
  std::function<void(size_t)> beyond_training = {};
};

enum class TextEnd { kSymbols, kStop, kEndSymbol, kPositions, kReader };

// Puts pieces of text together into whole characters, and holds back what may become a stop word.
class TextPieces {
 public:
  explicit TextPieces(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  // The text of another symbol; returns what is certain to be shown by now.
  std::string Add(std::string_view text);
  bool stopped() const { return stopped_; }
  // What was held back, nothing following; bytes that make no character as U+FFFD.
  std::string Finish();

 private:
  std::vector<std::string> stop_;
  std::string held_;
  bool stopped_ = false;
};

// A text that is being written: which symbol comes next, and what can be shown by now.
class TextDraft {
 public:
  // The vocabulary must outlive this. Throws InputError on a choice that makes no sense.
  TextDraft(const Vocabulary& vocabulary, const TextOptions& options);

  // The next symbol to read, from the head's outputs at the one before it; none at the end. Appends to
  // `shown` whole characters only.
  std::optional<int32_t> Next(std::span<const float> outputs, std::string& shown);
  // Ends it for want of positions, appending what was held back.
  void Stop(std::string& shown);
  TextEnd end() const { return end_; }  // after Next() gave none
  size_t symbols() const { return symbols_; }

 private:
  const Vocabulary* vocabulary_;
  ChoiceOptions choice_;
  size_t most_, symbols_ = 0;
  Philox rng_;
  TextPieces pieces_;
  std::vector<float> allowed_;
  TextEnd end_ = TextEnd::kPositions;
};

// A prompt's symbols, behind the one that begins a text. Throws InputError on one that is no UTF-8, or too
// long for the model.
std::vector<int32_t> TextPrompt(const Model& model, const Vocabulary& vocabulary,
                                const std::string& prompt);

class TextWriter {
 public:
  // Throws InputError for a model of another task. The engine must outlive this.
  explicit TextWriter(Engine& engine);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Goes on from a prompt ("" is the beginning of a text). reader(piece) is called with whole characters, and
  // ends it by returning false. Throws InputError on a prompt that is no UTF-8 or too long.
  TextEnd Write(const std::string& prompt, const TextOptions& options,
                FunctionRef<bool(std::string_view)> reader);

 private:
  Engine& engine_;
  Vocabulary vocabulary_;
};

// The vocabulary of a model of text or couplets. Throws InputError for one that has none.
Vocabulary VocabularyOf(const Model& model);

// What `linnet info` says of the vocabulary (Task::describe).
std::vector<std::pair<std::string, std::string>> DescribeText(const ModelSpec& spec);

// -log p of the symbols from `counted` (1 and up) on, each from those before it, in nats. Throws InputError
// on more symbols than the model has positions and one.
double NatsOf(Engine& engine, std::span<const int32_t> symbols, size_t counted);

}  // namespace linnet

#endif  // LINNET_TASKS_TEXT_TEXT_H_
