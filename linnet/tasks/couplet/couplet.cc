#include "linnet/tasks/couplet/couplet.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "linnet/base/hidden.h"
#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/tasks/couplet/rules.h"
#include "linnet/tasks/couplet/traditional.h"
#include "linnet/tasks/text/text.h"

namespace linnet {

CoupletTokens::CoupletTokens(const Model& model)
    : vocabulary(VocabularyOf(model)), path(model.path()) {
  const ModelSpec& spec = model.spec();
  if (spec.task != "couplet") {
    throw InputError(path, ": a model of the task '", spec.task,
                     "', but couplets need one of 'couplet'");
  }
  if (vocabulary.unit() == TextUnit::kToken) {
    throw InputError(path, ": a model of byte pairs, but couplets need one of characters");
  }
  const auto positions = static_cast<size_t>(spec.input.max_length);
  longest_pair = spec.encoder_decoder() ? 0 : positions - 1;
  longest = spec.encoder_decoder() ? positions - 1 : longest_pair / 2;
  comma = vocabulary.Encode("，")[0];
  punctuation.assign(vocabulary.size(), false);
  for (size_t i = Vocabulary::kFirst; i < vocabulary.size(); ++i) {
    const auto c = NextCodePoint(vocabulary.Decode(static_cast<int32_t>(i)), 0);
    punctuation[i] = c && IsPunctuation(c->value);
  }
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    if (i < Vocabulary::kFirst || punctuation[i]) unwritten.push_back(static_cast<int32_t>(i));
  }
}

std::string WithoutBlanks(const std::string& text, const std::string& what) {
  std::string line;
  for (size_t at = 0; at < text.size();) {
    const auto c = NextCodePoint(text, at);
    if (!c) throw InputError(what, " is not UTF-8");
    constexpr char32_t kBlanks[] = {' ', 0x3000, 0x200b,
                                    0xfeff};  // space, ideographic space, zero-width space, BOM
    if (std::find(std::begin(kBlanks), std::end(kBlanks), c->value) == std::end(kBlanks)) {
      line.append(text, at, c->bytes);
    }
    at += c->bytes;
  }
  if (!IsPrintable(line)) throw InputError(what, " holds control characters");
  return line;
}

namespace {

// The token of a character's simplified form; kUnknown if the character has no simplified form, or
// if the vocabulary lacks it.
int32_t SimplifiedToken(const Vocabulary& vocabulary, char32_t character) {
  const std::optional<char32_t> simplified = SimplifiedOf(character);
  if (!simplified) return Vocabulary::kUnknown;
  std::string text;
  AppendUtf8(*simplified, text);
  return vocabulary.Encode(text)[0];
}

}  // namespace

CoupletLine::CoupletLine(const CoupletTokens& tokens, const std::string& first)
    : tokens_(tokens), read_(tokens.vocabulary.Encode(first)) {
  for (size_t at = 0; at < first.size();) {
    const CodePoint c = *NextCodePoint(first, at);
    characters_.push_back(first.substr(at, c.bytes));
    punctuation_.push_back(IsPunctuation(c.value));
    int32_t& token = read_[punctuation_.size() - 1];
    if (token == Vocabulary::kUnknown) {
      token = punctuation_.back() ? tokens.comma : SimplifiedToken(tokens.vocabulary, c.value);
    }
    at += c.bytes;
  }
  if (read_.empty()) throw InputError("the first line is empty");
  if (read_.size() > tokens.longest) {
    throw InputError("a first line of ", read_.size(), " characters exceeds the maximum of ",
                     tokens.longest, " for this model");
  }
}

std::vector<int32_t> CoupletLine::Prompt() const {
  std::vector<int32_t> prompt = read_;
  prompt.push_back(Vocabulary::kSeparator);
  return prompt;
}

std::vector<std::string> CoupletLine::Unknown() const {
  std::vector<std::string> unknown;
  for (size_t i = 0; i < read_.size(); ++i) {
    if (read_[i] == Vocabulary::kUnknown &&
        std::find(unknown.begin(), unknown.end(), characters_[i]) == unknown.end()) {
      unknown.push_back(characters_[i]);
    }
  }
  return unknown;
}

bool CoupletLine::Same(size_t i, size_t j) const {
  return read_[i] == Vocabulary::kUnknown ? characters_[i] == characters_[j] : read_[i] == read_[j];
}

std::string CoupletLine::Text(size_t at, int32_t token) const {
  return punctuation_[at] ? characters_[at] : tokens_.vocabulary.Decode(token);
}

void CoupletLine::Allow(size_t at, std::span<const int32_t> used, std::span<float> logits) const {
  const auto forbid = [&](size_t token) { logits[token] = -INFINITY; };
  for (const int32_t token : tokens_.unwritten) forbid(static_cast<size_t>(token));
  forbid(static_cast<size_t>(read_[at]));
  // The second line repeats a character exactly where the first line repeats one.
  for (size_t i = 0; i < at; ++i) {
    if (punctuation_[i]) continue;
    const auto written = static_cast<size_t>(used[i]);
    if (Same(i, at)) {
      const float logit = logits[written];
      std::fill(logits.begin(), logits.end(), -INFINITY);
      // Choose() draws no token of logit -infinity. So the only allowed token gets a finite logit.
      logits[written] = std::max(logit, std::numeric_limits<float>::lowest());
      return;
    }
    forbid(written);
  }
}

int32_t CoupletDraft::Next(std::span<const float> outputs) {
  const size_t at = tokens_.size();
  const bool given = rules_ && line_->punctuation(at);  // token copied from the first line
  int32_t token = given ? line_->token(at) : 0;
  double score = 0;
  if (!given) {
    allowed_.assign(outputs.begin(), outputs.end());
    if (rules_) {
      line_->Allow(at, tokens_, allowed_);
    } else {
      allowed_[Vocabulary::kSeparator] = allowed_[Vocabulary::kUnknown] = -INFINITY;
    }
    token = Choose(allowed_, choice_, rng_);
    score = outputs[static_cast<size_t>(token)] - LogSumExp(outputs);
    answer_.log_probability += score;
    ++answer_.characters;
  }
  tokens_.push_back(token);
  if (rules_) {
    last_ = line_->Text(at, token);
    done_ = tokens_.size() == line_->size();
  } else {
    last_ = line_->tokens().vocabulary.Decode(token);
    const CoupletTokens& limits = line_->tokens();
    const size_t most =
        limits.longest_pair > 0 ? limits.longest_pair - line_->size() : limits.longest;
    done_ = token == Vocabulary::kEnd || tokens_.size() == std::min(2 * line_->size(), most);
  }
  answer_.text += last_;
  if (!last_.empty()) answer_.scores.push_back(score);  // empty: the end token
  return token;
}

namespace {

// The state and outputs after the engine has read the first line and the separator.
struct Begun {
  State state;  // of one sequence
  std::vector<float> logits;
};

// A partial second line in a beam search.
struct Path {
  std::vector<int32_t> tokens;
  double log_probability = 0;
  std::vector<double> scores;  // of each token; their sum is log_probability
};

// A path extended by one token.
struct Continuation {
  double log_probability;  // of the path with `token`
  size_t path;             // index of the path that `token` extends
  int32_t token;
  double score;  // log-probability of `token`
};

// Returns the most likely continuations of each path, at most `beam` per path. Replaces `logits`
// [paths, width] by log-probabilities, unless the first line has punctuation at place `at`.
std::vector<Continuation> Continue(const std::vector<Path>& paths, const CoupletLine& line,
                                   size_t at, size_t beam, std::span<float> logits) {
  const size_t width = logits.size() / paths.size();
  std::vector<float> allowed(width);
  std::vector<Continuation> next;
  for (size_t p = 0; p < paths.size(); ++p) {
    const auto row = logits.subspan(p * width, width);
    if (line.punctuation(at)) {  // copied, so its probability does not count
      next.push_back({paths[p].log_probability, p, line.token(at), 0});
      continue;
    }
    const float sum = LogSumExp(row);
    if (!std::isfinite(sum)) CheckLogits(row);
    for (float& x : row) x -= sum;
    std::copy(row.begin(), row.end(), allowed.begin());
    line.Allow(at, paths[p].tokens, allowed);
    std::vector<int32_t> order;
    for (size_t i = 0; i < width; ++i) {
      if (allowed[i] > -INFINITY) order.push_back(static_cast<int32_t>(i));
    }
    const auto likelier = [&](int32_t a, int32_t b) {
      const float x = allowed[static_cast<size_t>(a)], y = allowed[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    };
    const auto end = order.begin() + static_cast<ptrdiff_t>(std::min(beam, order.size()));
    std::partial_sort(order.begin(), end, order.end(), likelier);
    for (auto i = order.begin(); i != end; ++i) {
      const double score = allowed[static_cast<size_t>(*i)];
      next.push_back({paths[p].log_probability + score, p, *i, score});
    }
  }
  return next;
}

// Beam search: at each place, extends all paths, and keeps the options.beam most likely results.
std::vector<CoupletAnswer> Search(Engine& engine, const CoupletLine& line, const Begun& begun,
                                  const CoupletOptions& options) {
  std::vector<Path> paths(1);
  State state = begun.state.Clone();
  std::vector<float> logits = begun.logits;
  size_t counted = 0;  // characters in a path's log-probability
  for (size_t at = 0; at < line.size(); ++at) {
    std::vector<Continuation> next = Continue(paths, line, at, options.beam, logits);
    std::stable_sort(next.begin(), next.end(), [](const Continuation& a, const Continuation& b) {
      return a.log_probability > b.log_probability;
    });
    if (next.size() > options.beam) next.resize(options.beam);
    if (next.empty()) return {};
    counted += !line.punctuation(at);
    std::vector<Path> kept;
    std::vector<size_t> from;
    std::vector<int32_t> tokens;
    for (const Continuation& one : next) {
      kept.push_back({paths[one.path].tokens, one.log_probability, paths[one.path].scores});
      kept.back().tokens.push_back(one.token);
      kept.back().scores.push_back(one.score);
      from.push_back(one.path);
      tokens.push_back(one.token);
    }
    paths = std::move(kept);
    if (at + 1 == line.size()) break;
    state = state.Select(from);
    logits.resize(paths.size() * engine.output_size());
    engine.Step(state, tokens, logits);
  }
  std::vector<CoupletAnswer> answers;
  for (const Path& path : paths) {
    if (answers.size() == options.candidates) break;
    CoupletAnswer answer{
        .log_probability = path.log_probability, .characters = counted, .scores = path.scores};
    for (size_t i = 0; i < path.tokens.size(); ++i) {
      answer.text += line.Text(i, path.tokens[i]);
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

// Samples options.candidates second lines, and returns the distinct ones.
std::vector<CoupletAnswer> Draw(Engine& engine, const CoupletLine& line, const Begun& begun,
                                const CoupletOptions& options) {
  const size_t width = engine.output_size(), count = options.candidates;
  State state = begun.state.Fork(count);
  std::vector<float> logits(count * width);
  std::vector<CoupletDraft> drafts;
  for (size_t i = 0; i < count; ++i) {
    std::copy(begun.logits.begin(), begun.logits.end(),
              logits.begin() + static_cast<ptrdiff_t>(i * width));
    drafts.emplace_back(line, options.choice, options.seed, /*stream=*/i, options.rules);
  }
  std::vector<int32_t> tokens(count, Vocabulary::kEnd);
  const auto done = [](const CoupletDraft& draft) { return draft.done(); };
  while (true) {
    for (size_t i = 0; i < count; ++i) {
      if (drafts[i].done()) continue;
      tokens[i] = drafts[i].Next(std::span(logits).subspan(i * width, width));
    }
    if (std::all_of(drafts.begin(), drafts.end(), done)) break;
    // Steps all drafts, because they share one state. Outputs of finished drafts are not used.
    engine.Step(state, tokens, logits);
  }
  std::vector<CoupletAnswer> answers;
  answers.reserve(drafts.size());
  for (const CoupletDraft& draft : drafts) answers.push_back(draft.answer());
  return Distinct(std::move(answers));
}

}  // namespace

struct LINNET_HIDDEN CoupletWriter::Impl {
  explicit Impl(Engine& engine) : engine(engine), tokens(engine.model()) {}
  Engine& engine;
  CoupletTokens tokens;
};

CoupletWriter::CoupletWriter(Engine& engine) : impl_(std::make_unique<Impl>(engine)) {}
CoupletWriter::~CoupletWriter() = default;

const Vocabulary& CoupletWriter::vocabulary() const { return impl_->tokens.vocabulary; }

std::vector<std::string> CoupletWriter::Unknown(const std::string& first) const {
  return CoupletLine(impl_->tokens, WithoutBlanks(first)).Unknown();
}

std::vector<CoupletAnswer> CoupletWriter::Write(const std::string& first,
                                                const CoupletOptions& options) {
  Validate(options.choice);
  if (options.candidates == 0) throw InputError("candidates is 0; ask for at least one");
  Engine& engine = impl_->engine;
  const CoupletLine line(impl_->tokens, WithoutBlanks(first));
  const std::vector<int32_t> prompt = line.Prompt();
  Begun begun{engine.NewState(1), std::vector<float>(engine.output_size())};
  engine.Prefix(begun.state, prompt, prompt.size(), begun.logits);
  return options.beam > 0 && options.rules ? Search(engine, line, begun, options)
                                           : Draw(engine, line, begun, options);
}

std::vector<CoupletAnswer> Distinct(std::vector<CoupletAnswer> answers) {
  std::stable_sort(answers.begin(), answers.end(),
                   [](const CoupletAnswer& a, const CoupletAnswer& b) {
                     return a.log_probability > b.log_probability;
                   });
  std::vector<CoupletAnswer> distinct;
  for (CoupletAnswer& answer : answers) {
    const bool there =
        std::any_of(distinct.begin(), distinct.end(),
                    [&](const CoupletAnswer& other) { return other.text == answer.text; });
    if (!there) distinct.push_back(std::move(answer));
  }
  return distinct;
}

}  // namespace linnet
