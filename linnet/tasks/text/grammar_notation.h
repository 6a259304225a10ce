// Parses grammars in GBNF, the notation of llama.cpp (docs/structured-output.md).
//
//   const GrammarRules rules = ParseGrammar("root ::= \"yes\" | \"no\" [.!]?");
#ifndef LINNET_TASKS_TEXT_GRAMMAR_NOTATION_H_
#define LINNET_TASKS_TEXT_GRAMMAR_NOTATION_H_

#include <string>

#include "linnet/tasks/text/grammar_rules.h"

namespace linnet::grammar {

// Throws InputError, with the line, on an invalid grammar.
GrammarRules ParseGrammar(const std::string& text);

}  // namespace linnet::grammar

#endif  // LINNET_TASKS_TEXT_GRAMMAR_NOTATION_H_
