#include "linnet/runtime/couplet.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "linnet/base/error.h"
#include "linnet/base/utf8.h"

namespace linnet {

bool IsPunctuation(char32_t c) {
  const auto in = [c](char32_t low, char32_t high) { return c >= low && c <= high; };
  return in(0x21, 0x2f) || in(0x3a, 0x40) || in(0x5b, 0x60) || in(0x7b, 0x7e) || c == 0xb7 ||
         in(0x2010, 0x2027) || in(0x3001, 0x3003) || in(0x3008, 0x3011) || in(0x3014, 0x301f) ||
         in(0xff01, 0xff0f) || in(0xff1a, 0xff20) || in(0xff3b, 0xff40) || in(0xff5b, 0xff65);
}

struct CoupletWriter::Line {
  std::vector<int32_t> symbols;
  std::vector<std::string> characters;  // as they were given
  std::vector<bool> punctuation;
  State state;                // behind the separator, of one sequence
  std::vector<float> logits;  // there
};

CoupletWriter::CoupletWriter(Engine& engine)
    : engine_(engine),
      vocabulary_(engine.model().spec().text.unit, engine.model().spec().text.characters) {
  const ModelSpec& spec = engine.model().spec();
  if (spec.task != "couplet") {
    throw InputError(engine.model().path(), ": a model of the task '", spec.task,
                     "', which answers no couplets");
  }
  punctuation_.assign(vocabulary_.size(), false);
  for (size_t i = Vocabulary::kFirst; i < vocabulary_.size(); ++i) {
    const auto c = NextCodePoint(vocabulary_.Decode(static_cast<int32_t>(i)), 0);
    punctuation_[i] = c && IsPunctuation(c->value);
  }
}

void CoupletWriter::Allow(const Line& line, size_t at, std::span<const int32_t> used,
                          std::span<float> logits) const {
  const auto forbid = [&](size_t symbol) { logits[symbol] = -INFINITY; };
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i < Vocabulary::kFirst || punctuation_[i]) forbid(i);
  }
  const auto symbol = static_cast<size_t>(line.symbols[at]);
  forbid(symbol);
  // A character that was written before stands again only where the first line repeats its own there.
  for (size_t i = 0; i < at; ++i) {
    if (line.punctuation[i]) continue;
    if (line.characters[i] != line.characters[at]) forbid(static_cast<size_t>(used[i]));
  }
}

std::vector<Answer> CoupletWriter::Write(const std::string& first, const CoupletOptions& options) {
  Validate(options.choice);
  if (options.candidates == 0) throw InputError("candidates is 0; ask for at least one");
  Line line;
  line.symbols = vocabulary_.Encode(first);
  for (size_t at = 0; at < first.size();) {
    const CodePoint c = *NextCodePoint(first, at);
    line.characters.push_back(first.substr(at, c.bytes));
    line.punctuation.push_back(IsPunctuation(c.value));
    at += c.bytes;
  }
  const auto most = (static_cast<size_t>(engine_.model().spec().max_length) - 1) / 2;
  if (line.symbols.empty()) throw InputError("the first line is empty");
  if (line.symbols.size() > most) {
    throw InputError("a first line of ", line.symbols.size(), " characters is longer than the ",
                     most, " that this model answers");
  }
  std::vector<int32_t> read = line.symbols;
  read.push_back(Vocabulary::kSeparator);
  line.state = engine_.NewState(1);
  line.logits.resize(engine_.output_size());
  engine_.Prefix(line.state, read, read.size(), line.logits);
  return options.beam > 0 ? Search(line, options) : Draw(line, options);
}

// Beam search: of all continuations of the lines that are kept, the likeliest go on.
std::vector<Answer> CoupletWriter::Search(const Line& line, const CoupletOptions& options) {
  struct Path {
    std::vector<int32_t> symbols;
    double log_probability = 0;
  };
  const size_t width = engine_.output_size();
  const size_t beam = std::max(options.beam, options.candidates);
  std::vector<Path> paths(1);
  State state = line.state.Clone();
  std::vector<float> logits = line.logits, allowed(width);
  size_t counted = 0;
  for (size_t at = 0; at < line.symbols.size(); ++at) {
    struct Next {
      double log_probability;
      size_t path;
      int32_t symbol;
    };
    std::vector<Next> next;
    for (size_t p = 0; p < paths.size(); ++p) {
      const auto row = std::span(logits).subspan(p * width, width);
      if (line.punctuation[at]) {  // not a choice: it costs nothing
        next.push_back({paths[p].log_probability, p, line.symbols[at]});
        continue;
      }
      LogSoftmax(row);
      std::copy(row.begin(), row.end(), allowed.begin());
      Allow(line, at, paths[p].symbols, allowed);
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
        next.push_back({paths[p].log_probability + allowed[static_cast<size_t>(*i)], p, *i});
      }
    }
    std::stable_sort(next.begin(), next.end(), [](const Next& a, const Next& b) {
      return a.log_probability > b.log_probability;
    });
    if (next.size() > beam) next.resize(beam);
    if (next.empty()) return {};
    counted += !line.punctuation[at];
    std::vector<Path> kept;
    std::vector<size_t> from;
    std::vector<int32_t> symbols;
    for (const Next& one : next) {
      kept.push_back({paths[one.path].symbols, one.log_probability});
      kept.back().symbols.push_back(one.symbol);
      from.push_back(one.path);
      symbols.push_back(one.symbol);
    }
    paths = std::move(kept);
    if (at + 1 == line.symbols.size()) break;
    state = state.Select(from);
    logits.resize(paths.size() * width);
    engine_.Step(state, symbols, logits);
  }
  std::vector<Answer> answers;
  for (const Path& path : paths) {
    if (answers.size() == options.candidates) break;
    Answer answer{.log_probability = path.log_probability, .characters = counted};
    for (size_t i = 0; i < path.symbols.size(); ++i) {
      answer.text += line.punctuation[i] ? line.characters[i] : vocabulary_.Decode(path.symbols[i]);
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

std::vector<Answer> CoupletWriter::Draw(const Line& line, const CoupletOptions& options) {
  const size_t width = engine_.output_size(), count = options.candidates;
  State state = line.state.Fork(count);
  std::vector<float> logits(count * width);
  for (size_t i = 0; i < count; ++i) {
    std::copy(line.logits.begin(), line.logits.end(),
              logits.begin() + static_cast<ptrdiff_t>(i * width));
  }
  std::vector<Answer> answers(count);
  std::vector<std::vector<int32_t>> written(count);
  std::vector<Philox> rngs;
  for (size_t i = 0; i < count; ++i) rngs.emplace_back(options.seed, i);
  std::vector<int32_t> symbols(count);
  std::vector<float> allowed(width);
  for (size_t at = 0; at < line.symbols.size(); ++at) {
    for (size_t i = 0; i < count; ++i) {
      const auto row = std::span(logits).subspan(i * width, width);
      symbols[i] = line.symbols[at];
      if (!line.punctuation[at]) {
        LogSoftmax(row);
        std::copy(row.begin(), row.end(), allowed.begin());
        Allow(line, at, written[i], allowed);
        symbols[i] = Choose(allowed, options.choice, rngs[i]);
        answers[i].log_probability += row[static_cast<size_t>(symbols[i])];
        ++answers[i].characters;
      }
      written[i].push_back(symbols[i]);
      answers[i].text +=
          line.punctuation[at] ? line.characters[at] : vocabulary_.Decode(symbols[i]);
    }
    if (at + 1 < line.symbols.size()) engine_.Step(state, symbols, logits);
  }
  std::stable_sort(answers.begin(), answers.end(), [](const Answer& a, const Answer& b) {
    return a.log_probability > b.log_probability;
  });
  std::vector<Answer> distinct;
  for (Answer& answer : answers) {
    const bool there = std::any_of(distinct.begin(), distinct.end(),
                                   [&](const Answer& other) { return other.text == answer.text; });
    if (!there) distinct.push_back(std::move(answer));
  }
  return distinct;
}

}  // namespace linnet
