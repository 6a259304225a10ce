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

 private:
  friend class GrammarMatcher;
  explicit Grammar(std::shared_ptr<const grammar::Automaton> automaton)
      : automaton_(std::move(automaton)) {}

  std::shared_ptr<const grammar::Automaton> automaton_;
};

// The position of a text within a grammar.
class LINNET_API GrammarMatcher {
 public:
  // The vocabulary must outlive this object.
  GrammarMatcher(const Grammar& grammar, const Vocabulary& vocabulary);
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;
  ~GrammarMatcher();

  // Sets the logits of all tokens that cannot follow to -infinity. The end token can follow if
  // complete(). Throws InputError on fewer logits than tokens, and GrammarError if no token can
  // follow (the vocabulary lacks a character that the grammar requires, or the text nests too
  // deeply) or if the grammar is too ambiguous.
  void Mask(std::span<float> logits);
  // Adds a token to the text. Throws InputError if it cannot follow, or if it is the end token, and
  // GrammarError if the grammar is too ambiguous.
  void Add(int32_t token);

  bool complete() const;  // the text is in the grammar
  bool finished() const;  // and nothing can follow it

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet

#endif  // LINNET_GRAMMAR_H_
