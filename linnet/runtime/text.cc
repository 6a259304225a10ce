#include "linnet/runtime/text.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "linnet/base/error.h"
#include "linnet/base/utf8.h"

namespace linnet {

std::string TextPieces::Add(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  // A stop word that is whole ends the text in front of it.
  size_t end = std::string::npos;
  for (const std::string& stop : stop_) {
    if (!stop.empty()) end = std::min(end, held_.find(stop));
  }
  if (end != std::string::npos) {
    stopped_ = true;
    std::string shown = held_.substr(0, end);
    held_.clear();
    return shown;
  }
  // What could become one is held back, and so are the first bytes of a character.
  size_t certain = held_.size();
  for (const std::string& stop : stop_) {
    for (size_t length = std::min(stop.size(), held_.size()); length > 0; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) {
        certain = std::min(certain, held_.size() - length);
        break;
      }
    }
  }
  std::string shown;
  size_t at = 0;
  while (at < certain) {
    if (const auto next = NextCodePoint(held_, at)) {
      if (at + next->bytes > certain) break;
      shown.append(held_, at, next->bytes);
      at += next->bytes;
    } else if (held_.size() - at < 4 && static_cast<unsigned char>(held_[at]) >= 0xc2) {
      break;  // more bytes may come
    } else {
      AppendUtf8(0xfffd, shown);
      ++at;
    }
  }
  held_.erase(0, at);
  return shown;
}

std::string TextPieces::Finish() {
  std::string shown;
  for (size_t at = 0; at < held_.size();) {
    const auto next = NextCodePoint(held_, at);
    AppendUtf8(next ? next->value : 0xfffd, shown);
    at += next ? next->bytes : 1;
  }
  held_.clear();
  return shown;
}

Vocabulary VocabularyOf(const Model& model) {
  const ModelSpec& spec = model.spec();
  if (spec.task != "text" && spec.task != "couplet") {
    throw InputError(model.path(), ": a model of the task '", spec.task, "', which has no text");
  }
  return Vocabulary(spec.text.unit, spec.text.characters);
}

TextWriter::TextWriter(Engine& engine)
    : engine_(engine), vocabulary_(VocabularyOf(engine.model())) {
  if (engine.model().spec().task != "text") {
    throw InputError(engine.model().path(), ": a model of the task '", engine.model().spec().task,
                     "', which writes no running text");
  }
}

TextEnd TextWriter::Write(const std::string& prompt, const TextOptions& options,
                          FunctionRef<bool(std::string_view)> reader) {
  Validate(options.choice);
  std::vector<int32_t> read = {Vocabulary::kEnd};
  for (const int32_t symbol : vocabulary_.Encode(prompt)) read.push_back(symbol);
  const auto positions = static_cast<size_t>(engine_.model().spec().max_length);
  if (read.size() > positions) {
    throw InputError("a prompt of ", read.size() - 1, " symbols is longer than the model's ",
                     positions - 1);
  }
  Philox rng(options.seed, options.stream);
  TextPieces pieces(options.stop);
  State state = engine_.NewState(1);
  std::vector<float> logits(engine_.output_size());
  engine_.Prefix(state, read, read.size(), logits);
  const auto finish = [&](TextEnd end) {
    const std::string rest = pieces.Finish();
    if (!rest.empty()) reader(rest);
    return end;
  };
  for (size_t i = 0; i < options.symbols; ++i) {
    // No text: a separator, an unknown character.
    logits[Vocabulary::kSeparator] = logits[Vocabulary::kUnknown] = -INFINITY;
    const int32_t symbol = Choose(logits, options.choice, rng);
    if (symbol == Vocabulary::kEnd) return finish(TextEnd::kEndSymbol);
    const std::string shown = pieces.Add(vocabulary_.Decode(symbol));
    if (!shown.empty() && !reader(shown)) return TextEnd::kReader;
    if (pieces.stopped()) return TextEnd::kStop;
    if (i + 1 == options.symbols) break;
    if (state.position() == positions) return finish(TextEnd::kPositions);
    engine_.Step(state, {&symbol, 1}, logits);
  }
  return finish(TextEnd::kSymbols);
}

double NatsOf(Engine& engine, std::span<const int32_t> symbols, size_t counted) {
  if (symbols.size() < 2 || counted < 1) return 0;
  const size_t width = engine.output_size(), length = symbols.size() - 1;
  State state = engine.NewState(1);
  std::vector<float> outputs(length * width);
  engine.Prefix(state, symbols.first(length), length, outputs);
  double nats = 0;
  for (size_t t = counted - 1; t < length; ++t) {
    const auto row = std::span(outputs).subspan(t * width, width);
    LogSoftmax(row);
    nats -= row[static_cast<size_t>(symbols[t + 1])];
  }
  return nats;
}

}  // namespace linnet
