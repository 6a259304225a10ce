// Restricts generated text to a grammar or to the JSON of a schema (structured output).
//
//   const Grammar grammar = Grammar::OfJsonSchema(R"({"items": {"type": "integer"}})");
//   writer.Write("Primes: ", {.grammar = &grammar}, reader);        // TextWriter, linnet/text.h
//
// or token by token, with Engine::Step():
//
//   GrammarMatcher matcher(grammar, vocabulary);
//   matcher.Mask(logits);                              // -infinity for tokens that cannot follow
//   matcher.Add(Choose(logits, options, rng));         // until matcher.finished()
//
// docs/structured-output.md describes the notation of grammars and the supported schemas.
#ifndef LINNET_GRAMMAR_H_
#define LINNET_GRAMMAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "linnet/error.h"
#include "linnet/export.h"
#include "linnet/vocabulary.h"

namespace linnet {

namespace grammar {
class Automaton;
}

// A grammar stops a text: no token can follow, or the grammar is too ambiguous.
class LINNET_API GrammarError : public InputError {
 public:
  using InputError::InputError;
};

// Restricts the tokens of a text while it is drawn.
class LINNET_API TokenRule {
 public:
  virtual ~TokenRule() = default;
  // Sets the logits of all tokens that cannot follow to -infinity.
  virtual void Mask(std::span<float> logits) = 0;
  // Adds a token to the text.
  virtual void Add(int32_t token) = 0;
  // Whether nothing can follow.
  virtual bool finished() const = 0;
};

// A set of texts. Immutable; copies share their data.
class LINNET_API Grammar {
 public:
  // The texts of the rule `root` of a grammar in GBNF notation. Throws InputError, with the line,
  // on an invalid grammar.
  static Grammar Parse(const std::string& text);
  // The JSON values that a JSON schema accepts. Throws InputError on an invalid schema and on a
  // keyword that is not supported, with its place in the schema.
  static Grammar OfJsonSchema(const std::string& schema);
  // All JSON objects.
  static Grammar OfJsonObjects();

  // A GrammarMatcher.
  std::unique_ptr<TokenRule> NewRule(const Vocabulary& vocabulary) const {
    return new_rule_(*this, vocabulary);
  }

 private:
  friend class GrammarMatcher;
  explicit Grammar(std::shared_ptr<const grammar::Automaton> automaton);

  std::shared_ptr<const grammar::Automaton> automaton_;
  // A pointer, so that a program that makes no grammar does not contain matchers.
  std::unique_ptr<TokenRule> (*new_rule_)(const Grammar&, const Vocabulary&);
};

// The position of a text within a grammar.
class LINNET_API GrammarMatcher : public TokenRule {
 public:
  // The vocabulary must outlive this object.
  GrammarMatcher(const Grammar& grammar, const Vocabulary& vocabulary);
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;
  ~GrammarMatcher() override;

  // The end token can follow if complete(). Throws InputError on fewer logits than tokens, and
  // GrammarError if no token can follow (the vocabulary lacks a character that the grammar
  // requires, or the text nests too deeply) or if the grammar is too ambiguous.
  void Mask(std::span<float> logits) override;
  // Throws InputError if the token cannot follow, or if it is the end token, and GrammarError if
  // the grammar is too ambiguous.
  void Add(int32_t token) override;
  bool finished() const override;

  bool complete() const;  // the text is in the grammar

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet

#endif  // LINNET_GRAMMAR_H_
