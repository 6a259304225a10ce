// Text and couplets.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/capi/capi.h"
#include "linnet/tasks/task.h"

struct linnet_matcher {
  linnet_matcher(const linnet::Grammar& grammar, const linnet::Vocabulary& tokens)
      : vocabulary(tokens), matcher(grammar, vocabulary) {}

  linnet::Vocabulary vocabulary;
  linnet::GrammarMatcher matcher;
};

struct linnet_couplets {
  std::vector<linnet::CoupletAnswer> answers;
  std::string unknown;
};

namespace linnet::capi {
namespace {

static_assert(static_cast<int>(TextEnd::kTokens) == LINNET_TEXT_TOKENS);
static_assert(static_cast<int>(TextEnd::kStop) == LINNET_TEXT_STOP);
static_assert(static_cast<int>(TextEnd::kEndToken) == LINNET_TEXT_END_TOKEN);
static_assert(static_cast<int>(TextEnd::kPositions) == LINNET_TEXT_POSITIONS);
static_assert(static_cast<int>(TextEnd::kReader) == LINNET_TEXT_READER);
static_assert(static_cast<int>(TextEnd::kGrammar) == LINNET_TEXT_GRAMMAR);

constexpr linnet_text_options kTextOptions = {.size = sizeof(linnet_text_options),
                                              .tokens = 256,
                                              .sampling = nullptr,
                                              .stop = nullptr,
                                              .stop_count = 0,
                                              .grammar = nullptr};
constexpr linnet_couplet_options kCoupletOptions = {.size = sizeof(linnet_couplet_options),
                                                    .candidates = 1,
                                                    .beam = 16,
                                                    .sampling = nullptr,
                                                    .free_form = 0};

TextOptions ReadTextOptions(const linnet_text_options* options) {
  const linnet_text_options given = Read(options, kTextOptions, "linnet_text_options");
  const linnet_sampling sampling = ReadSampling(given.sampling);
  TextOptions own{.tokens = given.tokens,
                  .choice = ChoiceOf(sampling),
                  .seed = sampling.seed,
                  .stream = sampling.stream};
  for (const char* stop : Array(given.stop, given.stop_count, "linnet_text_options.stop")) {
    own.stop.push_back(&Given(stop, "a stop string"));
  }
  if (given.grammar != nullptr) own.grammar = &given.grammar->grammar;
  return own;
}

CoupletOptions ReadCoupletOptions(const linnet_couplet_options* options) {
  const linnet_couplet_options given = Read(options, kCoupletOptions, "linnet_couplet_options");
  const linnet_sampling sampling = ReadSampling(given.sampling);
  Validate(ChoiceOf(sampling));
  if (given.candidates == 0) throw InputError("the number of candidates must be at least 1");
  return {.candidates = given.candidates,
          .beam = given.beam,
          .choice = ChoiceOf(sampling),
          .seed = sampling.seed,
          .rules = given.free_form == 0};
}

// Return the engine's writer, created by the first call. Throw InputError for models of other
// tasks.
TextWriter& TextWriterOf(linnet_engine* engine) {
  linnet_engine& given = Given(engine, "the engine");
  if (!given.text) given.text.emplace(given.engine);
  return *given.text;
}
CoupletWriter& CoupletWriterOf(linnet_engine* engine) {
  linnet_engine& given = Given(engine, "the engine");
  if (!given.couplets) given.couplets.emplace(given.engine);
  return *given.couplets;
}

// Returns the sum of -log p over the tokens at index `first` and later.
double Nats(Engine& engine, std::span<const int32_t> tokens, size_t first) {
  const ModelSpec& spec = engine.model().spec();
  if (spec.logistics() || spec.ReadsFrames()) {
    throw InputError(engine.model().path(), ": a model of the task '", spec.task,
                     "', which gives no probabilities of tokens");
  }
  if (first == 0) throw InputError("the first token has no probability; count from index 1");
  for (const int32_t token : tokens) {  // the engine never reads, so never checks, the last token
    if (token < 0 || token >= spec.OutputSize()) {
      throw InputError(engine.model().path(), ": token ", token, " is outside its vocabulary 0 .. ",
                       spec.OutputSize() - 1);
    }
  }
  const double nats = NatsOf(engine, tokens, first);
  CheckMean(engine.model(), nats);
  return nats;
}

const CoupletAnswer& AnswerOf(const linnet_couplets* couplets, size_t i) {
  const std::vector<CoupletAnswer>& answers = Given(couplets, "the couplets").answers;
  if (i >= answers.size()) {
    throw InputError("there is no line ", i, "; there are ", answers.size());
  }
  return answers[i];
}

}  // namespace
}  // namespace linnet::capi

using namespace linnet::capi;

extern "C" {

linnet_grammar* linnet_grammar_new(const char* text, size_t bytes) {
  return ValueOf<linnet_grammar*>(nullptr, [&] {
    return new linnet_grammar{linnet::Grammar::Parse(Text(text, bytes, "the grammar"))};
  });
}

linnet_grammar* linnet_grammar_of_json_schema(const char* schema, size_t bytes) {
  return ValueOf<linnet_grammar*>(nullptr, [&] {
    return new linnet_grammar{linnet::Grammar::OfJsonSchema(Text(schema, bytes, "the schema"))};
  });
}
void linnet_grammar_free(linnet_grammar* grammar) { delete grammar; }

linnet_matcher* linnet_matcher_new(const linnet_grammar* grammar, const linnet_model* model) {
  return ValueOf<linnet_matcher*>(nullptr, [&] {
    const linnet::Grammar& own = Given(grammar, "the grammar").grammar;
    return new linnet_matcher(own, VocabularyOf(model));
  });
}
void linnet_matcher_free(linnet_matcher* matcher) { delete matcher; }

int linnet_matcher_mask(linnet_matcher* matcher, float* logits, size_t count) {
  return StatusOf(
      [&] { Given(matcher, "the matcher").matcher.Mask(Array(logits, count, "logits")); });
}

int linnet_matcher_add(linnet_matcher* matcher, int32_t token, int* finished) {
  return StatusOf([&] {
    linnet::GrammarMatcher& own = Given(matcher, "the matcher").matcher;
    own.Add(token);
    if (finished != nullptr) *finished = own.finished() ? 1 : 0;
  });
}

int linnet_text_options_init(linnet_text_options* options, size_t size) {
  return StatusOf([&] { Initialize(options, size, kTextOptions, "linnet_text_options"); });
}

int linnet_write_text(linnet_engine* engine, const char* prompt, size_t bytes,
                      const linnet_text_options* options, linnet_reader reader, void* data,
                      int* end) {
  return StatusOf([&] {
    linnet::TextWriter& writer = TextWriterOf(engine);
    const linnet::TextOptions own = ReadTextOptions(options);
    if (reader == nullptr) throw linnet::InputError("the reader is NULL");
    const linnet::TextEnd reason = writer.Write(
        Text(prompt, bytes, "the prompt"), own,
        [&](std::string_view piece) { return reader(data, piece.data(), piece.size()) == 0; });
    if (end != nullptr) *end = static_cast<int>(reason);
  });
}

int linnet_text_nats(linnet_engine* engine, const char* text, size_t bytes, double* nats,
                     size_t* tokens) {
  return StatusOf([&] {
    Given(nats, "nats");
    const linnet::Vocabulary& vocabulary = TextWriterOf(engine).vocabulary();
    std::vector<int32_t> read = vocabulary.begin();
    for (const int32_t token : vocabulary.Encode(Text(text, bytes, "the text"))) {
      read.push_back(token);
    }
    *nats = Nats(engine->engine, read, vocabulary.begin().size());
    if (tokens != nullptr) *tokens = read.size() - vocabulary.begin().size();
  });
}

int linnet_nats(linnet_engine* engine, const int32_t* tokens, size_t count, size_t first,
                double* nats) {
  return StatusOf([&] {
    Given(nats, "nats");
    *nats = Nats(Given(engine, "the engine").engine, Array(tokens, count, "tokens"), first);
  });
}

int linnet_couplet_options_init(linnet_couplet_options* options, size_t size) {
  return StatusOf([&] { Initialize(options, size, kCoupletOptions, "linnet_couplet_options"); });
}

linnet_couplets* linnet_write_couplets(linnet_engine* engine, const char* first, size_t bytes,
                                       const linnet_couplet_options* options) {
  return ValueOf<linnet_couplets*>(nullptr, [&] {
    linnet::CoupletWriter& writer = CoupletWriterOf(engine);
    const linnet::CoupletOptions own = ReadCoupletOptions(options);
    const std::string line = Text(first, bytes, "the first line");
    std::string unknown;
    for (const std::string& character : writer.Unknown(line)) {
      unknown += (unknown.empty() ? "" : " ") + character;
    }
    return new linnet_couplets{writer.Write(line, own), unknown};
  });
}
void linnet_couplets_free(linnet_couplets* couplets) { delete couplets; }

size_t linnet_couplets_count(const linnet_couplets* couplets) {
  return ValueOf<size_t>(0, [&] { return Given(couplets, "the couplets").answers.size(); });
}
const char* linnet_couplets_text(const linnet_couplets* couplets, size_t i) {
  return ValueOf<const char*>(nullptr, [&] { return AnswerOf(couplets, i).text.c_str(); });
}
double linnet_couplets_log_probability(const linnet_couplets* couplets, size_t i) {
  return ValueOf(0.0, [&] { return AnswerOf(couplets, i).log_probability; });
}
const double* linnet_couplets_scores(const linnet_couplets* couplets, size_t i, size_t* count) {
  return ValueOf<const double*>(nullptr, [&] {
    const std::vector<double>& scores = AnswerOf(couplets, i).scores;
    Given(count, "count");
    *count = scores.size();
    return scores.data();
  });
}
const char* linnet_couplets_unknown(const linnet_couplets* couplets) {
  return ValueOf<const char*>(nullptr,
                              [&] { return Given(couplets, "the couplets").unknown.c_str(); });
}

}  // extern "C"
