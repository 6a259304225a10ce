// Makes a grammar of the JSON values that a JSON schema accepts (docs/structured-output.md).
#ifndef LINNET_TASKS_TEXT_JSON_SCHEMA_H_
#define LINNET_TASKS_TEXT_JSON_SCHEMA_H_

#include <string>

#include "linnet/tasks/text/grammar_rules.h"

namespace linnet::grammar {

// Throws InputError, with the place in the schema, if the schema is invalid or uses a keyword that
// is not supported.
GrammarRules RulesOfSchema(const std::string& schema);

}  // namespace linnet::grammar

#endif  // LINNET_TASKS_TEXT_JSON_SCHEMA_H_
