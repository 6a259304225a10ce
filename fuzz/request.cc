// Parses the body of POST /v1/completions or, if it has messages or input, of /v1/chat/completions
// or /v1/responses.
#include <nlohmann/json.hpp>
#include <string_view>

#include "fuzz/target.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/tasks/text/completion_request.h"
#include "linnet/vocabulary.h"

namespace linnet::fuzz {
namespace {

// Accepts no work; gives ParseCompletion() the model and the maximum number of sequences.
class NoWorker : public server::Worker {
 public:
  const Model& model() const override { return *TextModel(); }
  std::shared_ptr<const Model> shared_model() const override { return TextModel(); }
  size_t most_sequences() const override { return 64; }
  std::optional<uint64_t> Submit(std::vector<server::Work>) override { return std::nullopt; }
  void Cancel(uint64_t) override {}
};

}  // namespace

const FuzzTarget kRequest = {
    "request", [](std::span<const std::byte> bytes) {
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      std::string fault;
      const nlohmann::ordered_json body = ParseOrderedJson(text, 64, fault);
      if (!fault.empty()) throw InputError(fault);
      static const Vocabulary vocabulary = Vocabulary::Bytes();
      if (body.is_object() && body.contains("messages")) {
        static const ChatFormat format = ChatFormat::Of("chatml");
        server::ParseChat(server::Fields(body, server::ChatFields()), format, NoWorker(),
                          vocabulary, {});
      } else if (body.is_object() && body.contains("input")) {
        server::ParseResponse(server::Fields(body, server::ResponseFields()), {});
      } else {
        server::ParseCompletion(server::Fields(body, server::CompletionFields()), NoWorker(),
                                vocabulary, {});
      }
    }};

}  // namespace linnet::fuzz
