// Parses and checks requests of POST /v1/completions, /v1/chat/completions and /v1/responses, which
// have OpenAI's fields (docs/http.md).
#ifndef LINNET_TASKS_TEXT_COMPLETION_REQUEST_H_
#define LINNET_TASKS_TEXT_COMPLETION_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "linnet/grammar.h"
#include "linnet/tasks/endpoint.h"
#include "linnet/tasks/text/chat_format.h"
#include "linnet/tasks/text/text.h"
#include "linnet/vocabulary.h"

namespace linnet::server {

// The vocabularies of the served models. A request shares its model's, which its last callbacks may
// use after the endpoint's end.
class Vocabularies {
 public:
  explicit Vocabularies(const std::vector<ServedModel>& models);
  const std::shared_ptr<const Vocabulary>& Of(const ServedModel& served) const {
    return of_.at(served.worker);
  }

 private:
  std::map<const Worker*, std::shared_ptr<const Vocabulary>> of_;
};

struct CompletionRequest {
  std::vector<std::vector<int32_t>> prompts;  // made by TextPrompt()
  std::optional<std::string> state;           // name of the state that the only prompt continues
  bool return_state = false;                  // keep the state at the end of each text
  size_t n = 1;                               // sequences per prompt
  std::optional<Grammar> grammar;             // of the texts
  TextOptions options;                        // without the grammar
  std::optional<size_t> logprobs;  // number of the most likely tokens to report, at most 5
  // usage: a stream ends with the numbers of tokens.
  bool stream = false, usage = false;
};

// Reads 'prompt' and 'state': at most `most` prompts or, with a state, only one, which may be
// empty.
std::vector<std::vector<int32_t>> PromptsOf(const Fields& fields, const Model& model,
                                            const Vocabulary& vocabulary, size_t most);

// The names of all fields that a request may have.
const std::vector<std::string>& CompletionFields();

const std::vector<std::string>& ChatFields();

// Throws InputError on a field that is wrong or not supported, on a prompt that the model cannot
// read, and on more sequences than the limits or the worker allow.
CompletionRequest ParseCompletion(const Fields& fields, const Worker& worker,
                                  const Vocabulary& vocabulary, const EndpointLimits& limits);
// The same for POST /v1/chat/completions, whose 'messages' make the prompt.
CompletionRequest ParseChat(const Fields& fields, const ChatFormat& format, const Worker& worker,
                            const Vocabulary& vocabulary, const EndpointLimits& limits);

// A request of POST /v1/responses.
struct ResponseRequest {
  CompletionRequest completion;         // without prompts
  std::vector<ChatMessage> input;       // new messages
  std::string instructions;             // a system message before all others
  std::optional<std::string> previous;  // id of the response that this one continues
  bool store = true;                    // keep the response
  nlohmann::ordered_json settings;      // fields that the response repeats
};

const std::vector<std::string>& ResponseFields();

ResponseRequest ParseResponse(const Fields& fields, const EndpointLimits& limits);

}  // namespace linnet::server

#endif  // LINNET_TASKS_TEXT_COMPLETION_REQUEST_H_
