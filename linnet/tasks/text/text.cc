#include "linnet/tasks/text/text.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/tasks/text/speculation.h"

namespace linnet {

namespace {

// Replaces each byte of invalid UTF-8 by U+FFFD.
std::string Mended(std::string_view text) {
  std::string mended;
  for (char32_t c : CodePoints(text)) AppendUtf8(c, mended);
  return mended;
}

}  // namespace

std::string TextPieces::Add(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  // The text ends before the first complete stop string.
  size_t end = std::string::npos;
  for (const std::string& stop : stop_) {
    if (!stop.empty()) end = std::min(end, held_.find(stop));
  }
  if (end != std::string::npos) {
    stopped_ = true;
    std::string shown = Mended(std::string_view(held_).substr(0, end));
    held_.clear();
    return shown;
  }
  // Holds back an end that may be the beginning of a stop string, and incomplete characters.
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
      break;  // more bytes may follow
    } else {
      AppendUtf8(0xfffd, shown);
      ++at;
    }
  }
  held_.erase(0, at);
  return shown;
}

std::string TextPieces::Finish() {
  std::string shown = Mended(held_);
  held_.clear();
  return shown;
}

Vocabulary VocabularyOf(const Model& model) {
  const ModelSpec& spec = model.spec();
  if (!spec.text()) {
    throw InputError(model.path(), ": a model of the task '", spec.task,
                     "', which has no vocabulary of text");
  }
  return Vocabulary(*spec.text());
}

Drafter::~Drafter() = default;

TextWriter::TextWriter(Engine& engine)
    : engine_(engine), vocabulary_(VocabularyOf(engine.model())) {
  if (engine.model().spec().task != "text") {
    throw InputError(engine.model().path(), ": a model of the task '", engine.model().spec().task,
                     "', but writing text needs one of 'text'");
  }
}

TextDraft::TextDraft(const Vocabulary& vocabulary, const TextOptions& options)
    : vocabulary_(&vocabulary),
      choice_(options.choice),
      most_(options.tokens),
      rng_(options.seed, options.stream),
      pieces_(options.stop) {
  Validate(options.choice);
  if (options.grammar) rule_ = options.grammar->NewRule(vocabulary);
}

std::optional<int32_t> TextDraft::Next(std::span<const float> outputs, std::string& shown) {
  const auto finish = [&](TextEnd end) -> std::optional<int32_t> {
    end_ = end;
    if (end != TextEnd::kStop) shown += pieces_.Finish();
    return {};
  };
  if (rule_ && rule_->finished()) return finish(TextEnd::kGrammar);
  if (tokens_ == most_) return finish(TextEnd::kTokens);
  allowed_.assign(outputs.begin(), outputs.end());
  for (const int32_t token : vocabulary_->unwritten()) {
    allowed_[static_cast<size_t>(token)] = -INFINITY;
  }
  if (rule_) rule_->Mask(allowed_);
  const int32_t token = Choose(allowed_, choice_, rng_);
  if (token == vocabulary_->end()) return finish(TextEnd::kEndToken);
  ++tokens_, last_ = token;
  shown += pieces_.Add(vocabulary_->Decode(token));
  if (pieces_.stopped()) return finish(TextEnd::kStop);
  if (rule_) {
    rule_->Add(token);
    if (rule_->finished()) return finish(TextEnd::kGrammar);
  }
  if (tokens_ == most_) return finish(TextEnd::kTokens);
  return token;
}

void TextDraft::Stop(std::string& shown) {
  end_ = TextEnd::kPositions;
  shown += pieces_.Finish();
}

std::vector<int32_t> TextPrompt(const Model& model, const Vocabulary& vocabulary,
                                const std::string& prompt) {
  return TextPrompt(model, vocabulary, vocabulary.Encode(prompt));
}

std::vector<int32_t> TextPrompt(const Model& model, const Vocabulary& vocabulary,
                                const std::vector<int32_t>& prompt) {
  std::vector<int32_t> read = vocabulary.begin();
  read.insert(read.end(), prompt.begin(), prompt.end());
  const std::optional<size_t> most = model.most_positions();
  if (most && read.size() > *most) {
    throw InputError("a prompt of ", prompt.size(), " tokens exceeds the model's maximum of ",
                     *most - std::min(*most, vocabulary.begin().size()));
  }
  return read;
}

TextEnd TextWriter::Write(const std::string& prompt, const TextOptions& options,
                          const std::function<bool(std::string_view)>& reader) {
  guessed_ = accepted_ = 0;
  TextDraft draft(vocabulary_, options);
  const std::vector<int32_t> read = TextPrompt(engine_.model(), vocabulary_, prompt);
  const std::optional<size_t> most = engine_.model().most_positions();
  const auto trained = static_cast<size_t>(engine_.model().spec().input.max_length);
  State state = engine_.NewState(1);
  std::vector<float> prompted(engine_.output_size());
  engine_.Prefix(state, read, read.size(), prompted);
  Speculator speculator(engine_, std::move(state), read, options.drafter, options.guesses);
  std::span<const float> logits = prompted;
  bool warned = false;
  while (true) {
    std::string shown;
    const std::optional<int32_t> token = draft.Next(logits, shown);
    guessed_ = speculator.guessed(), accepted_ = speculator.accepted();
    const size_t position = speculator.position();
    const bool full = token && most && position == *most;
    if (full) draft.Stop(shown);
    if (!shown.empty() && !reader(shown)) return TextEnd::kReader;
    if (!token || full) return draft.end();
    if (position >= trained && !warned && options.beyond_training) {
      warned = true;
      options.beyond_training(trained);
    }
    // `more`: how many tokens will be read after this one. The text's last token is not read.
    size_t more = options.tokens - draft.tokens() - 1;
    if (most) more = std::min(more, *most - position - 1);
    logits = speculator.Step(*token, more, draft.choice(), draft.rng());
  }
}

double NatsOf(Engine& engine, std::span<const int32_t> tokens, size_t counted) {
  if (tokens.size() < 2 || counted < 1) return 0;
  const size_t width = engine.output_size(), length = tokens.size() - 1;
  State state = engine.NewState(1);
  std::vector<float> outputs(length * width);
  engine.Prefix(state, tokens.first(length), length, outputs);
  double nats = 0;
  for (size_t t = counted - 1; t < length; ++t) {
    const auto row = std::span(outputs).subspan(t * width, width);
    LogSoftmax(row);
    nats -= row[static_cast<size_t>(tokens[t + 1])];
  }
  return nats;
}

}  // namespace linnet
