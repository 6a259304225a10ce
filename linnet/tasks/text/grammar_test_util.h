// Used by tests: texts of bytes, and the grammars that accept them.
#ifndef LINNET_TASKS_TEXT_GRAMMAR_TEST_UTIL_H_
#define LINNET_TASKS_TEXT_GRAMMAR_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/grammar.h"

namespace linnet {

inline const Vocabulary& ByteVocabulary() {
  static const Vocabulary vocabulary = Vocabulary::Bytes();
  return vocabulary;
}

inline int32_t ByteToken(char c) { return ByteVocabulary().Encode(std::string(1, c))[0]; }

// The bytes that can follow, in ascending order.
inline std::string AllowedBytes(GrammarMatcher& matcher) {
  std::vector<float> logits(ByteVocabulary().size(), 0);
  matcher.Mask(logits);
  std::string allowed;
  for (size_t i = Vocabulary::kFirst; i < logits.size(); ++i) {
    if (logits[i] == 0) allowed += static_cast<char>(i - Vocabulary::kFirst);
  }
  EXPECT_EQ(logits[Vocabulary::kEnd] == 0, matcher.complete());
  return allowed;
}

// Adds a byte, and returns whether it can follow. Checks that Mask() and Add() agree.
inline bool AddByte(GrammarMatcher& matcher, char c) {
  const bool allowed = !matcher.finished() && AllowedBytes(matcher).find(c) != std::string::npos;
  try {
    matcher.Add(ByteToken(c));
    EXPECT_TRUE(allowed) << c;
    return true;
  } catch (const InputError&) {
    EXPECT_FALSE(allowed) << c;
    return false;
  }
}

// Whether the grammar accepts the text.
inline bool Accepts(const Grammar& grammar, const std::string& text) {
  GrammarMatcher matcher(grammar, ByteVocabulary());
  for (const char c : text) {
    if (!AddByte(matcher, c)) return false;
  }
  return matcher.complete();
}

// The message of the error that `make` throws; "" if it throws none.
template <class Make>
std::string FaultOf(Make make, const std::string& text) {
  try {
    make(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace linnet

#endif  // LINNET_TASKS_TEXT_GRAMMAR_TEST_UTIL_H_
