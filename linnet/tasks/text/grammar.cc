#include "linnet/grammar.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>
#include <vector>

#include "linnet/base/hidden.h"
#include "linnet/error.h"
#include "linnet/model/sorted_tokens.h"
#include "linnet/tasks/text/automaton.h"
#include "linnet/tasks/text/grammar_notation.h"
#include "linnet/tasks/text/grammar_places.h"
#include "linnet/tasks/text/json_schema.h"

namespace linnet {
using grammar::Automaton;

Grammar::Grammar(std::shared_ptr<const Automaton> automaton)
    : automaton_(std::move(automaton)),
      new_rule_([](const Grammar& grammar, const Vocabulary& vocabulary) {
        return std::unique_ptr<TokenRule>(new GrammarMatcher(grammar, vocabulary));
      }) {}

Grammar Grammar::Parse(const std::string& text) {
  return Grammar(std::make_shared<const Automaton>(grammar::ParseGrammar(text)));
}

Grammar Grammar::OfJsonSchema(const std::string& schema) {
  return Grammar(std::make_shared<const Automaton>(grammar::RulesOfSchema(schema)));
}

Grammar Grammar::OfJsonObjects() { return OfJsonSchema(R"({"type": "object"})"); }

struct LINNET_HIDDEN GrammarMatcher::Impl {
  Impl(std::shared_ptr<const Automaton> automaton, const Vocabulary& vocabulary)
      : places(std::move(automaton)),
        vocabulary(&vocabulary),
        sorted(&vocabulary.sorted()),
        place(places.start()) {}

  // The tokens that can follow the current place.
  const std::vector<bool>& Allowed() {
    const auto found = masks.find(place);
    if (found != masks.end()) return found->second;
    std::vector<bool> allowed(vocabulary->size(), false);
    std::vector<int32_t> path = {place};  // path[i]: the place after i bytes of the token's text
    for (size_t i = 0; i < sorted->tokens.size(); ++i) {
      const std::string& text = sorted->texts[i];
      path.resize(std::min(path.size(), sorted->shared[i] + 1));
      while (path.size() <= text.size() && path.back() != grammar::kNowhere) {
        path.push_back(places.Next(path.back(), static_cast<uint8_t>(text[path.size() - 1])));
      }
      if (path.back() != grammar::kNowhere) allowed[static_cast<size_t>(sorted->tokens[i])] = true;
    }
    if (masks.size() == kMostMasks) masks.clear();
    return masks[place] = std::move(allowed);
  }

  static constexpr size_t kMostMasks = 32;  // in masks

  grammar::Places places;
  const Vocabulary* vocabulary;
  const SortedTokens* sorted;
  int32_t place;
  std::unordered_map<int32_t, std::vector<bool>> masks;  // of places
};

GrammarMatcher::GrammarMatcher(const Grammar& grammar, const Vocabulary& vocabulary)
    : impl_(std::make_unique<Impl>(grammar.automaton_, vocabulary)) {}
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
GrammarMatcher::~GrammarMatcher() = default;

void GrammarMatcher::Mask(std::span<float> logits) {
  if (logits.size() < impl_->vocabulary->size()) {
    throw InputError(logits.size(), " logits for a vocabulary of ", impl_->vocabulary->size());
  }
  const std::vector<bool>& allowed = impl_->Allowed();
  const auto end = static_cast<size_t>(impl_->vocabulary->end());
  const bool may_end = complete();
  bool any = may_end;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i < allowed.size() && allowed[i]) {  // a model may have more outputs than tokens
      any = true;
    } else if (i != end || !may_end) {
      logits[i] = -INFINITY;
    }
  }
  if (!any) {
    throw GrammarError(
        "no token can follow in the grammar: the vocabulary lacks a character that it requires, or "
        "the text nests too deeply");
  }
}

void GrammarMatcher::Add(int32_t token) {
  const std::string text = impl_->vocabulary->Decode(token);
  impl_->places.AllowWork();
  int32_t place = text.empty() ? grammar::kNowhere : impl_->place;
  for (const char c : text) {
    if (place != grammar::kNowhere) place = impl_->places.Next(place, static_cast<uint8_t>(c));
  }
  if (place == grammar::kNowhere) {
    throw InputError("the token ", token, " cannot follow in the grammar");
  }
  impl_->place = place;
  if (impl_->places.full()) {
    impl_->masks.clear();
    impl_->place = impl_->places.Keep(place);
  }
}

bool GrammarMatcher::complete() const { return impl_->places[impl_->place].complete; }

bool GrammarMatcher::finished() const {
  const grammar::Place& place = impl_->places[impl_->place];
  return place.complete && place.readings.empty();
}

}  // namespace linnet
