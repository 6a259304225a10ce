// The drafters of speculative decoding.
#include "linnet/text.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <utility>

#include "linnet/error.h"

namespace linnet {
namespace {

class ModelDrafter : public Drafter {
 public:
  explicit ModelDrafter(Engine& engine)
      : engine_(engine),
        vocabulary_(VocabularyOf(engine.model())),
        state_(engine.NewState(1)),
        logits_(engine.output_size()) {}

  std::vector<int32_t> Guess(std::span<const int32_t> text, size_t count,
                             const ChoiceOptions& choice, Philox rng) override {
    const std::optional<size_t> most = engine_.model().most_positions();
    if (most) count = std::min(count, *most - std::min(*most, text.size() - 1));
    if (count == 0) return {};
    GoBack(text);
    Read(text.subspan(read_.size()));
    std::vector<int32_t> guesses;
    while (true) {
      for (const int32_t token : vocabulary_.unwritten()) {
        logits_[static_cast<size_t>(token)] = -INFINITY;
      }
      guesses.push_back(Choose(logits_, choice, rng));
      if (guesses.size() == count || guesses.back() == vocabulary_.end()) return guesses;
      State before = state_.Clone();
      Read({&guesses.back(), 1});
      kept_.push_back(std::move(before));
    }
  }

 private:
  // Goes back to a state that has read a prefix of the text, but not the text's last token, which
  // Read() must read to compute the logits of the next token.
  void GoBack(std::span<const int32_t> text) {
    const auto end = std::mismatch(read_.begin(), read_.end(), text.begin(), text.end()).first;
    const auto common = std::min(static_cast<size_t>(end - read_.begin()), text.size() - 1);
    const size_t first = read_.size() - kept_.size();  // number of tokens that kept_[0] has read
    if (common < read_.size() && common >= first) {
      state_ = std::move(kept_[common - first]);
      read_.resize(common);
    } else if (common < read_.size()) {
      state_.Reset();
      read_.clear();
    }
    kept_.clear();
  }
  void Read(std::span<const int32_t> tokens) {
    engine_.Prefix(state_, tokens, tokens.size(), logits_);
    read_.insert(read_.end(), tokens.begin(), tokens.end());
  }

  Engine& engine_;
  const Vocabulary vocabulary_;
  State state_;
  std::vector<int32_t> read_;  // the tokens that state_ has read
  std::vector<State> kept_;    // the states before each of the last kept_.size() tokens of read_
  std::vector<float> logits_;
};

class Repeater : public Drafter {
 public:
  std::vector<int32_t> Guess(std::span<const int32_t> text, size_t count, const ChoiceOptions&,
                             Philox) override {
    if (!std::equal(read_.begin(), read_.end(), text.begin(),
                    text.begin() + static_cast<ptrdiff_t>(std::min(read_.size(), text.size())))) {
      read_.clear(), ends_.clear();  // another text
    }
    for (size_t end = read_.size(); end < text.size(); ++end) {
      if (end >= kTokens) ends_[Hash(text.first(end))] = end;
    }
    read_.assign(text.begin(), text.end());
    if (text.size() < kTokens) return {};
    const auto found = ends_.find(Hash(text));
    if (found == ends_.end()) return {};
    const auto next = text.subspan(found->second);
    return {next.begin(), next.begin() + static_cast<ptrdiff_t>(std::min(count, next.size()))};
  }

 private:
  // Number of tokens to find again. Shorter sequences often repeat by chance, and then different
  // tokens follow.
  static constexpr size_t kTokens = 4;

  static uint64_t Hash(std::span<const int32_t> text) {
    uint64_t hash = 0;
    for (const int32_t token : text.last(kTokens)) {
      hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
    return hash;
  }

  std::vector<int32_t> read_;                  // the text of the last call
  std::unordered_map<uint64_t, size_t> ends_;  // hash of kTokens tokens -> their last end
};

}  // namespace

std::unique_ptr<Drafter> MakeDrafter(Engine& small, const Model& large) {
  const TextSpec *own = small.model().spec().text(), *other = large.spec().text();
  if (own == nullptr || other == nullptr || *own != *other) {
    throw InputError(small.model().path(), ": cannot draft for ", large.path(),
                     ", which has another vocabulary");
  }
  return std::make_unique<ModelDrafter>(small);
}
std::unique_ptr<Drafter> MakeRepeater() { return std::make_unique<Repeater>(); }

}  // namespace linnet
