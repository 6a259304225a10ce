// A running request for texts: draws the tokens of its sequences, and sends the answer in the form
// of its endpoint.
#ifndef LINNET_TASKS_TEXT_SESSION_H_
#define LINNET_TASKS_TEXT_SESSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "linnet/tasks/endpoint.h"
#include "linnet/tasks/text/completion_request.h"
#include "linnet/tasks/text/text.h"
#include "linnet/tasks/text/token_scores.h"

namespace linnet::server {

// A text in progress.
struct Choice {
  TextDraft draft;
  std::optional<TokenScores> scores;  // if the request has logprobs
  size_t prompt = 0;                  // length of TextPrompt(): begin tokens and prompt
  std::string text = {};         // the text so far or, if Session::events, its end before the state
                                 // is kept
  const char* reason = nullptr;  // why the text ended: "stop" or "length"; null: it goes on
  std::string state = {};        // name of the kept state; empty until it is kept
  std::string fault = {};        // why the state was not kept
  bool returns = false;          // the request wants the state
  bool read = false;             // the model has been asked to read the last token, too
  int open = 1;  // callbacks still to come: ended() and, if it returns a state, kept()

  // Number of positions that the model reads: all tokens except the last, unless that was read to
  // draw an end token or for the state.
  size_t length() const {
    const bool unread = draft.tokens() > 0 && draft.end() != TextEnd::kEndToken && !read;
    return prompt + draft.tokens() - (unread ? 1 : 0);
  }
};

class Session;

// The form of an answer.
class AnswerForm {
 public:
  virtual ~AnswerForm() = default;
  // The events of a stream: at its beginning; for text that can be shown, or for the end of choice
  // i (Choice::reason); after the end of all choices.
  virtual std::string Begin(const Session&) { return ""; }
  virtual std::string Piece(Session& session, size_t i, const std::string& shown) = 0;
  virtual std::string End(Session& session) = 0;
  // The answer to a request without `stream`.
  virtual std::string Whole(Session& session) = 0;
  // An error, in a stream or as the answer. type: "server_error" or "invalid_request_error".
  virtual std::string Failure(const std::string& type, const std::string& why, bool event);
};

// Engine threads use the choices, one thread per choice at a time (Work::next). The other members,
// and choices that have ended, are guarded by `mutex`: the batcher's thread and the thread that
// keeps states use them.
class Session {
 public:
  Session(std::unique_ptr<AnswerForm> form, std::shared_ptr<const Vocabulary> words)
      : vocabulary(std::move(words)), form_(std::move(form)) {}

  // Draws the next token of choice `i`, and sends the text that can now be shown.
  std::optional<int32_t> Next(size_t i, std::span<const float> outputs);
  void Ended(size_t i, server::Ended how, const std::string& message);
  // The state of choice `i` is kept under this name or, with a fault, is not kept.
  void Kept(size_t i, const std::string& name, const std::string& fault);
  // The prompt has been read.
  void Begin();

  // The numbers of tokens in OpenAI's usage objects.
  size_t written() const;

  const std::shared_ptr<const Vocabulary> vocabulary;  // of the choices
  std::mutex mutex;
  std::vector<Choice> choices;  // n for each prompt, in the order of the prompts
  size_t left = 0;              // number of choices in progress
  size_t trained = 0;           // number of positions in training
  bool events = false;          // the answer is a stream
  bool grammar = false;         // the texts follow a grammar
  std::shared_ptr<std::atomic<int>> status = std::make_shared<std::atomic<int>>(200);
  std::string model, id, why;  // why: message of an exception; empty if there was none
  int64_t created = 0;
  std::shared_ptr<Pipe> pipe = std::make_shared<Pipe>();
  std::shared_ptr<Account> account;
  std::shared_ptr<void> room;  // for the states that are kept

 private:
  void Close(size_t i, int callbacks);
  void Show(size_t i, const std::string& shown);
  void Done();

  const std::unique_ptr<AnswerForm> form_;
  bool begun_ = false;
  std::atomic<bool> refused_{false};  // the request's grammar stopped a text
};

// The beginning of a message without the blanks that models of chats write before it. (A text that
// follows a grammar stays as it is.)
inline std::string MessageOf(const Session& session, const std::string& text) {
  const size_t first = session.grammar ? 0 : text.find_first_not_of(" \n");
  return first == text.npos ? "" : text.substr(first);
}

// Sends a request to the worker of a served model. `id`: the prefix of the answer's id. Throws
// Refusal if the queue is full, or if there is no room for the states that the request returns.
Reply Start(CompletionRequest request, std::shared_ptr<const Vocabulary> vocabulary,
            const ServedModel& served, std::unique_ptr<AnswerForm> form, const char* id,
            std::shared_ptr<Account> account);

}  // namespace linnet::server

#endif  // LINNET_TASKS_TEXT_SESSION_H_
