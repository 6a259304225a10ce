// POST /v1/completions: text completion in the format of OpenAI's clients (docs/http.md).
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "linnet/base/error.h"
#include "linnet/tasks/endpoint.h"
#include "linnet/tasks/text/text.h"

namespace linnet::server {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// The fields of OpenAI's interface, and top_k. Some are refused unless they have no effect.
const std::vector<std::string> kFields = {"prompt",
                                          "max_tokens",
                                          "n",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "seed",
                                          "stop",
                                          "stream",
                                          "stream_options",
                                          "model",
                                          "logprobs",
                                          "best_of",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "suffix",
                                          "logit_bias",
                                          "echo",
                                          "user"};

const char* Reason(TextEnd end) {
  return end == TextEnd::kStop || end == TextEnd::kEndToken ? "stop" : "length";
}

// The state of a running request. The batcher's thread owns it; each of the drafts is used by one
// engine thread at a time (Work::next).
struct Session {
  const Vocabulary* vocabulary;
  std::vector<TextDraft> drafts;
  std::vector<std::string> texts;
  std::vector<const char*> reasons;
  size_t left = 0;
  size_t trained = 0;  // number of positions in training
  bool events = false, usage = false;
  std::shared_ptr<std::atomic<int>> status = std::make_shared<std::atomic<int>>(200);
  std::string model, id, why;
  int64_t created = 0;
  std::shared_ptr<Pipe> pipe = std::make_shared<Pipe>();
  std::shared_ptr<Account> account;

  ordered_json Object(ordered_json choices) const {
    return {{"id", id},
            {"object", "text_completion"},
            {"created", created},
            {"model", model},
            {"choices", std::move(choices)}};
  }
  ordered_json Usage() const {
    size_t written = 0;
    for (const TextDraft& draft : drafts) written += draft.tokens();
    const size_t prompt = account->prompt;
    return {{"prompt_tokens", prompt},
            {"completion_tokens", written},
            {"total_tokens", prompt + written},
            {"prompt_tokens_details", {{"cached_tokens", account->known.load()}}}};
  }
  // Warns of a text longer than in training, which sine positions allow.
  void WarnOfLength(ordered_json& answer) const {
    size_t longest = 0;
    for (const TextDraft& draft : drafts)
      longest = std::max(longest, account->prompt + draft.tokens());
    if (longest <= trained) return;
    answer["warning"] =
        StrCat("the model was trained on ", trained, " positions; this text is longer");
  }
  static ordered_json Choice(size_t index, const std::string& text, const char* reason) {
    return {{"text", text},
            {"index", index},
            {"logprobs", nullptr},
            {"finish_reason", reason ? ordered_json(reason) : ordered_json()}};
  }
  void Show(size_t i, const std::string& text, const char* reason) {
    if (!events) {
      texts[i] += text;
    } else if (!text.empty() || reason) {
      ordered_json event = Object({Choice(i, text, reason)});
      if (reason) WarnOfLength(event);
      pipe->Push(Event("", event));
    }
  }
  void Done() {
    if (!why.empty()) {
      *status = 500;
      const ordered_json error = {{"error", {{"message", why}, {"type", "server_error"}}}};
      pipe->Push(events ? Event("", error) : Dump(error));
    } else if (events) {
      if (usage) {
        ordered_json last = Object(ordered_json::array());
        last["usage"] = Usage();
        pipe->Push(Event("", last));
      }
      pipe->Push("data: [DONE]\n\n");
    } else {
      ordered_json choices = ordered_json::array();
      for (size_t i = 0; i < texts.size(); ++i) choices.push_back(Choice(i, texts[i], reasons[i]));
      ordered_json result = Object(std::move(choices));
      result["usage"] = Usage();
      WarnOfLength(result);
      pipe->Push(Dump(result) + "\n");
    }
    pipe->Close();
  }
};

// The prompt: a string, or a list of one string.
std::string PromptOf(const Fields& fields) {
  if (!fields.Has("prompt")) return "";
  const json& value = fields.Value("prompt");
  const json& text = value.is_array() && value.size() == 1 ? value[0] : value;
  if (!text.is_string())
    throw InputError("'prompt' must be one string; send one request per prompt");
  return text.get<std::string>();
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
void RefuseWhatIsNotThere(const Fields& fields) {
  for (const char* name : {"suffix", "logprobs", "logit_bias"}) {
    if (fields.Has(name) && !(fields.Value(name).is_object() && fields.Value(name).empty()) &&
        fields.Value(name) != json(0)) {
      throw InputError("'", name, "' is not supported");
    }
  }
  if (fields.Flag("echo", false)) throw InputError("'echo' is not supported");
  for (const char* name : {"presence_penalty", "frequency_penalty"}) {
    if (fields.Number(name, 0, -2, 2) != 0) throw InputError("'", name, "' is not supported");
  }
  // Answer() checks the limit of `n`.
  constexpr int64_t kAny = int64_t{1} << 53;
  if (fields.Integer("best_of", 1, 1, kAny) != fields.Integer("n", 1, 1, kAny) &&
      fields.Has("best_of")) {
    throw InputError("'best_of' other than 'n' is not supported");
  }
  fields.Text("user", "");
}

class Completions : public Endpoint {
 public:
  Completions(std::vector<ServedModel> models, const EndpointLimits& limits)
      : models_(std::move(models)), limits_(limits) {
    for (const ServedModel& served : models_) {
      vocabularies_.emplace(served.worker, VocabularyOf(served.worker->model()));
    }
  }

  Reply Answer(const json& request, std::shared_ptr<Account> account) override {
    const Fields fields(request, kFields);
    const ServedModel& served = Choose(models_, fields);
    const Vocabulary& vocabulary = vocabularies_.at(served.worker);
    RefuseWhatIsNotThere(fields);
    const std::string prompt = PromptOf(fields);
    TextOptions options;
    options.tokens = static_cast<size_t>(
        fields.Integer("max_tokens", 16, 0, static_cast<int64_t>(limits_.tokens)));
    options.stop = StopsOf(fields);
    options.choice = ChoiceOf(fields, {}, options.seed);
    const auto count = static_cast<size_t>(fields.Integer(
        "n", 1, 1,
        static_cast<int64_t>(std::min(limits_.candidates, served.worker->most_sequences()))));
    auto session = std::make_shared<Session>();
    session->events = fields.Flag("stream", false);
    if (fields.Has("stream_options")) {
      const Fields more(fields.Value("stream_options"), {"include_usage"}, "'stream_options'");
      session->usage = more.Flag("include_usage", false);
    }
    session->vocabulary = &vocabulary;
    for (size_t i = 0; i < count; ++i) {
      options.stream = i;
      session->drafts.emplace_back(vocabulary, options);
    }
    session->texts.resize(count), session->reasons.resize(count, nullptr);
    session->left = count;
    session->model = served.name;
    session->trained = static_cast<size_t>(served.worker->model().spec().input.max_length);
    session->created = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
    session->id = StrCat("cmpl-", session->created, "-", ++last_);
    session->account = std::move(account);

    Work work{.prompt = TextPrompt(served.worker->model(), vocabulary, prompt),
              .sequences = count,
              .next = {},
              .ended = {}};
    session->account->prompt = work.prompt.size() - 1;
    work.begun = [session](size_t known) {
      session->account->known = known > 0 ? known - 1 : 0;
      session->pipe->Begin();
    };
    work.next = [session](size_t i, std::span<const float> outputs) -> std::optional<int32_t> {
      std::string shown;
      TextDraft& draft = session->drafts[i];
      const size_t before = draft.tokens();
      const auto token = draft.Next(outputs, shown);
      if (draft.tokens() > before) session->account->Generated();
      if (!token) session->reasons[i] = Reason(draft.end());
      session->Show(i, shown, session->reasons[i]);
      return token;
    };
    work.ended = [session](size_t i, Ended how, const std::string& why) {
      if (how == Ended::kFailed) session->why = why;
      if (how == Ended::kFull || how == Ended::kCancelled) {  // no position or time left
        std::string shown;
        session->drafts[i].Stop(shown);
        session->reasons[i] = "length";
        session->Show(i, shown, "length");
      }
      if (--session->left == 0) session->Done();
    };
    const auto id = served.worker->Submit(std::move(work));
    if (!id) throw Refusal{429, "the queue is full; try again in a moment"};
    return {session->events, session->pipe, session->status, served.worker, *id};
  }

 private:
  std::vector<ServedModel> models_;
  EndpointLimits limits_;
  std::map<const Worker*, Vocabulary> vocabularies_;
  std::atomic<uint64_t> last_{0};
};

}  // namespace

std::unique_ptr<Endpoint> MakeCompletions(std::vector<ServedModel> models,
                                          const EndpointLimits& limits) {
  return std::make_unique<Completions>(std::move(models), limits);
}

}  // namespace linnet::server
