#include "linnet/tasks/text/completion_request.h"

#include <algorithm>

#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet::server {
namespace {

using json = nlohmann::ordered_json;

constexpr int64_t kMostLogprobs = 5;

// Converts a JSON list of tokens to one prompt.
std::vector<int32_t> TokensOf(const json& list, const Vocabulary& vocabulary) {
  std::vector<int32_t> tokens;
  for (const json& token : list) {
    if (!token.is_number_integer()) {
      throw InputError("'prompt' has a list of tokens in which an element is not a whole number");
    }
    // Integers from 2^63 to 2^64 - 1 wrap to negative values here, and are refused below. (The JSON
    // parser turns integers that need more than 64 bits into floats, which were refused above.)
    const auto value = token.get<int64_t>();
    if (value < 0 || static_cast<uint64_t>(value) >= vocabulary.size()) {
      throw InputError("'prompt' has the token ", token.dump(), "; this model's tokens are 0 to ",
                       vocabulary.size() - 1);
    }
    tokens.push_back(static_cast<int32_t>(value));
  }
  return tokens;
}

// The only prompt of a request that continues a state: without the tokens that begin a text.
std::vector<int32_t> PromptAfterState(const Fields& fields, const Vocabulary& vocabulary) {
  if (!fields.Has("prompt")) return {};
  const json& value = fields.Value("prompt");
  if (value.is_string()) return vocabulary.Encode(value.get<std::string>());
  if (value.is_array() && (value.empty() || value[0].is_number())) {
    return TokensOf(value, vocabulary);
  }
  throw InputError("'state' needs one prompt: a string or a list of tokens");
}

std::vector<std::string> StopsOf(const Fields& fields) {
  if (!fields.Has("stop")) return {};
  const json& value = fields.Value("stop");
  constexpr size_t kMost = 4, kLongest = 256;
  std::vector<std::string> stops;
  for (const json& one : value.is_array() ? value : json::array({value})) {
    if (!one.is_string()) throw InputError("'stop' must be a string or a list of strings");
    stops.push_back(one.get<std::string>());
    if (stops.back().empty() || stops.back().size() > kLongest) {
      throw InputError("'stop' has a string of ", stops.back().size(), " bytes; use 1 to ",
                       kLongest, " bytes");
    }
  }
  if (stops.size() > kMost) throw InputError("'stop' has more than ", kMost, " strings");
  return stops;
}

// Refuses features of OpenAI's interface that are not supported and would change the answer.
void RefuseUnsupported(const Fields& fields) {
  for (const char* name : {"suffix", "logit_bias"}) {
    if (fields.Has(name) && !(fields.Value(name).is_object() && fields.Value(name).empty())) {
      throw InputError("'", name, "' is not supported");
    }
  }
  if (fields.Flag("echo", false)) throw InputError("'echo' is not supported");
  for (const char* name : {"presence_penalty", "frequency_penalty"}) {
    if (fields.Number(name, 0, -2, 2) != 0) throw InputError("'", name, "' is not supported");
  }
  // Any number is accepted here; ParseCompletion() checks the limits of `n`.
  constexpr int64_t kAny = int64_t{1} << 53;
  if (fields.Has("best_of") &&
      fields.Integer("best_of", 1, 1, kAny) != fields.Integer("n", 1, -kAny, kAny)) {
    throw InputError("'best_of' other than 'n' is not supported");
  }
  fields.Text("user", "");  // checks the type; the value is ignored
}

const std::vector<std::string> kSchemaFields = {"name", "description", "schema", "strict"};

// The grammar of a format whose type is text, json_object or json_schema. schema: the fields of the
// JSON schema. `what` names the format in messages.
template <class SchemaFields>
std::optional<Grammar> GrammarOf(const Fields& format, const std::string& what,
                                 const SchemaFields& schema) {
  const std::string type = format.Text("type", "");
  if (type == "text") return {};
  if (type == "json_object") return Grammar::OfJsonObjects();
  if (type != "json_schema") {
    throw InputError(what, " has the type ", Quote(type), "; use text, json_object or json_schema");
  }
  return Grammar::OfJsonSchema(schema().Value("schema").dump());
}

// 'grammar' or 'response_format' of completions and chats.
std::optional<Grammar> GrammarOf(const Fields& fields) {
  const bool formatted = fields.Has("response_format");
  if (fields.Has("grammar")) {
    if (formatted) throw InputError("'grammar' and 'response_format' exclude each other");
    return Grammar::Parse(fields.Text("grammar", ""));
  }
  if (!formatted) return {};
  const Fields format(fields.Value("response_format"), {"type", "json_schema"},
                      "'response_format'");
  return GrammarOf(format, "'response_format'", [&] {
    return Fields(format.Value("json_schema"), kSchemaFields, "'json_schema'");
  });
}

// The fields that completions and chats share.
CompletionRequest ParseSampling(const Fields& fields, const Worker& worker,
                                const EndpointLimits& limits) {
  RefuseUnsupported(fields);
  CompletionRequest request;
  request.grammar = GrammarOf(fields);
  request.options.stop = StopsOf(fields);
  request.options.choice = ChoiceOf(fields, {}, request.options.seed);
  request.n = static_cast<size_t>(fields.Integer(
      "n", 1, 1, static_cast<int64_t>(std::min(limits.candidates, worker.most_sequences()))));
  request.stream = fields.Flag("stream", false);
  if (fields.Has("stream_options")) {
    const Fields more(fields.Value("stream_options"), {"include_usage"}, "'stream_options'");
    request.usage = more.Flag("include_usage", false);
  }
  return request;
}

// Refuses features of OpenAI's chats that are not supported and would change the answer.
void RefuseUnsupportedChat(const Fields& fields) {
  for (const char* name : {"tools", "functions", "tool_choice", "function_call"}) {
    if (fields.Has(name)) throw InputError("'", name, "' is not supported");
  }
  if (fields.Flag("logprobs", false) || fields.Has("top_logprobs")) {
    throw InputError("'logprobs' of chats are not supported; /v1/completions has them");
  }
}

// A message's text: a string, or a list of parts of the type text (in responses, input_text or
// output_text).
std::string ContentOf(const json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw InputError("a message's 'content' must be a string");
  std::string text;
  for (const json& part : content) {
    const bool typed = part.is_object() && part.contains("type") && part["type"].is_string();
    const std::string type = typed ? part["type"].get<std::string>() : "";
    if (type != "text" && type != "input_text" && type != "output_text") {
      throw InputError("a message has content of the type ", Quote(type),
                       "; only text is supported");
    }
    const Fields fields(part, {"type", "text", "annotations", "logprobs"},
                        "a part of a message's 'content'");
    text += fields.Text("text", "");
  }
  return text;
}

std::vector<ChatMessage> MessagesOf(const json& list, const std::string& field) {
  if (!list.is_array() || list.empty()) {
    throw InputError("'", field, "' must be ", field == "input" ? "a string or " : "",
                     "a list of messages");
  }
  std::vector<ChatMessage> messages;
  for (const json& one : list) {
    const Fields message(one, {"role", "content", "name", "refusal", "type", "id", "status"},
                         "a message");
    if (message.Text("type", "message") != "message") {
      throw InputError("'", field, "' has an item of the type ", Quote(message.Text("type", "")),
                       "; only messages are supported");
    }
    const std::string role = message.Text("role", "");
    // "developer" is OpenAI's new name of "system".
    messages.push_back(
        {role == "developer" ? "system" : role, ContentOf(message.Value("content"))});
  }
  return messages;
}

}  // namespace

Vocabularies::Vocabularies(const std::vector<ServedModel>& models) {
  for (const ServedModel& served : models) {
    of_.emplace(served.worker,
                std::make_shared<const Vocabulary>(VocabularyOf(served.worker->model())));
  }
}

// 'prompt' is a string, a list of strings, a list of tokens (one prompt), or a list of lists of
// tokens.
std::vector<std::vector<int32_t>> PromptsOf(const Fields& fields, const Model& model,
                                            const Vocabulary& vocabulary, size_t most) {
  if (fields.Has("state")) return {PromptAfterState(fields, vocabulary)};
  if (!fields.Has("prompt")) return {TextPrompt(model, vocabulary, "")};
  const json& value = fields.Value("prompt");
  if (value.is_string()) return {TextPrompt(model, vocabulary, value.get<std::string>())};
  if (value.is_array() && value.empty()) throw InputError("'prompt' is an empty list");
  if (value.is_array() && value[0].is_number()) {
    return {TextPrompt(model, vocabulary, TokensOf(value, vocabulary))};
  }
  const bool lists = value.is_array() && value[0].is_array();
  const auto is_right = [&](const json& one) { return lists ? one.is_array() : one.is_string(); };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_right)) {
    throw InputError(
        "'prompt' must be a string, a list of strings, a list of tokens, or a list of lists of "
        "tokens");
  }
  if (value.size() > most) {
    throw InputError("'prompt' has ", value.size(), " prompts; at most ", most,
                     " sequences are possible in one request");
  }
  std::vector<std::vector<int32_t>> prompts;
  for (const json& one : value) {
    prompts.push_back(lists ? TextPrompt(model, vocabulary, TokensOf(one, vocabulary))
                            : TextPrompt(model, vocabulary, one.get<std::string>()));
  }
  return prompts;
}

const std::vector<std::string>& CompletionFields() {
  static const std::vector<std::string> names = {"prompt",
                                                 "max_tokens",
                                                 "n",
                                                 "temperature",
                                                 "top_p",
                                                 "top_k",
                                                 "seed",
                                                 "stop",
                                                 "logprobs",
                                                 "stream",
                                                 "model",
                                                 "best_of",
                                                 "logit_bias",
                                                 "presence_penalty",
                                                 "frequency_penalty",
                                                 "suffix",
                                                 "echo",
                                                 "user",
                                                 "stream_options",
                                                 "state",
                                                 "return_state",
                                                 "grammar",
                                                 "response_format"};
  return names;
}

const std::vector<std::string>& ChatFields() {
  static const std::vector<std::string> names = {"messages",
                                                 "max_tokens",
                                                 "max_completion_tokens",
                                                 "n",
                                                 "temperature",
                                                 "top_p",
                                                 "top_k",
                                                 "seed",
                                                 "stop",
                                                 "stream",
                                                 "stream_options",
                                                 "model",
                                                 "user",
                                                 "logit_bias",
                                                 "logprobs",
                                                 "top_logprobs",
                                                 "presence_penalty",
                                                 "frequency_penalty",
                                                 "tools",
                                                 "functions",
                                                 "tool_choice",
                                                 "function_call",
                                                 "store",
                                                 "response_format",
                                                 "grammar"};
  return names;
}

CompletionRequest ParseCompletion(const Fields& fields, const Worker& worker,
                                  const Vocabulary& vocabulary, const EndpointLimits& limits) {
  const size_t most =
      std::min(std::max(limits.candidates, limits.sequences), worker.most_sequences());
  CompletionRequest request = ParseSampling(fields, worker, limits);
  if (fields.Has("state")) request.state = fields.Text("state", "");
  request.return_state = fields.Flag("return_state", false);
  request.prompts = PromptsOf(fields, worker.model(), vocabulary, most);
  request.options.tokens =
      static_cast<size_t>(fields.Integer("max_tokens", 16, 0, static_cast<int64_t>(limits.tokens)));
  if (request.prompts.size() * request.n > most) {
    throw InputError("'prompt' has ", request.prompts.size(), " prompts and 'n' is ", request.n,
                     ": ", request.prompts.size() * request.n, " sequences; at most ", most,
                     " are possible in one request");
  }
  if (fields.Has("logprobs")) {
    request.logprobs = static_cast<size_t>(fields.Integer("logprobs", 0, 0, kMostLogprobs));
  }
  return request;
}

CompletionRequest ParseChat(const Fields& fields, const ChatFormat& format, const Worker& worker,
                            const Vocabulary& vocabulary, const EndpointLimits& limits) {
  RefuseUnsupportedChat(fields);
  CompletionRequest request = ParseSampling(fields, worker, limits);
  request.prompts = {TextPrompt(worker.model(), vocabulary,
                                format.Text(MessagesOf(fields.Value("messages"), "messages")))};
  const auto most = static_cast<int64_t>(limits.tokens);
  request.options.tokens = static_cast<size_t>(
      fields.Integer("max_completion_tokens",
                     fields.Integer("max_tokens", std::min<int64_t>(256, most), 0, most), 0, most));
  request.options.stop.insert(request.options.stop.end(), format.stop.begin(), format.stop.end());
  return request;
}

const std::vector<std::string>& ResponseFields() {
  static const std::vector<std::string> names = {
      "model",       "input",       "instructions", "previous_response_id",
      "store",       "stream",      "temperature",  "max_output_tokens",
      "top_p",       "text",        "metadata",     "top_k",
      "seed",        "truncation",  "tools",        "parallel_tool_calls",
      "tool_choice", "user",        "include",      "background",
      "reasoning",   "service_tier"};
  return names;
}

namespace {

// 'metadata': like OpenAI, at most 16 short strings, since a kept response repeats it.
json MetadataOf(const Fields& fields) {
  constexpr size_t kMost = 16, kLongest = 512;
  if (!fields.Has("metadata")) return json::object();
  const json& metadata = fields.Value("metadata");
  const auto fits = [](const json& value) {
    return value.is_string() && value.get_ref<const std::string&>().size() <= kLongest;
  };
  if (!metadata.is_object() || metadata.size() > kMost ||
      !std::all_of(metadata.begin(), metadata.end(), fits)) {
    throw InputError("'metadata' must be an object of at most ", kMost, " strings of at most ",
                     kLongest, " bytes");
  }
  return metadata;
}

}  // namespace

ResponseRequest ParseResponse(const Fields& fields, const EndpointLimits& limits) {
  for (const char* name : {"reasoning", "tools", "include"}) {
    if (fields.Has(name) && !fields.Value(name).empty()) {
      throw InputError("'", name, "' is not supported");
    }
  }
  const std::string tool = fields.Text("tool_choice", "auto");
  if (tool != "auto" && tool != "none") throw InputError("'tool_choice' is not supported");
  // These only check the types; the values are ignored.
  fields.Flag("parallel_tool_calls", true);
  for (const char* name : {"user", "service_tier"}) fields.Text(name, "");
  if (fields.Flag("background", false)) throw InputError("'background' is not supported");
  if (fields.Text("truncation", "disabled") != "disabled") {
    throw InputError("'truncation' other than disabled is not supported");
  }
  ResponseRequest request;
  CompletionRequest& completion = request.completion;
  completion.options.choice = ChoiceOf(fields, {}, completion.options.seed);
  const auto most = static_cast<int64_t>(limits.tokens);
  const int64_t tokens = fields.Integer("max_output_tokens", std::min<int64_t>(256, most), 0, most);
  completion.options.tokens = static_cast<size_t>(tokens);
  completion.stream = fields.Flag("stream", false);
  json text = {{"format", {{"type", "text"}}}};
  if (fields.Has("text")) {
    const Fields about(fields.Value("text"), {"format", "verbosity"}, "'text'");
    about.Text("verbosity", "");
    if (about.Has("format")) {
      text["format"] = about.Value("format");
      std::vector<std::string> names = kSchemaFields;
      names.push_back("type");
      const Fields format(about.Value("format"), names, "'format'");
      completion.grammar = GrammarOf(format, "'format'", [&] { return format; });
    }
  }
  const json& input = fields.Value("input");
  if (input.is_string()) {
    request.input = {{"user", input.get<std::string>()}};
  } else {
    request.input = MessagesOf(input, "input");
  }
  request.instructions = fields.Text("instructions", "");
  if (fields.Has("previous_response_id")) {
    request.previous = fields.Text("previous_response_id", "");
  }
  request.store = fields.Flag("store", true);
  const auto given = [&](const char* name, const json& otherwise) {
    return fields.Has(name) ? fields.Value(name) : otherwise;
  };
  request.settings = {{"instructions", given("instructions", nullptr)},
                      {"max_output_tokens", tokens},
                      {"previous_response_id", given("previous_response_id", nullptr)},
                      {"store", request.store},
                      {"temperature", given("temperature", 1)},
                      {"top_p", given("top_p", 1)},
                      {"text", text},
                      {"metadata", MetadataOf(fields)},
                      {"tools", json::array()},
                      {"tool_choice", "auto"},
                      {"parallel_tool_calls", true},
                      {"truncation", "disabled"}};
  return request;
}

}  // namespace linnet::server
