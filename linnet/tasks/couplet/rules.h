// The rules of couplets that a program can check.
//
//   const CoupletRules kept = KeptRules("海上生明月", "天涯共此时");
//   kept.all()      // true
#ifndef LINNET_TASKS_COUPLET_RULES_H_
#define LINNET_TASKS_COUPLET_RULES_H_

#include <string>

namespace linnet {

// Whether a character is punctuation, in Chinese or Latin text.
bool IsPunctuation(char32_t c);

// Whether the second line keeps each rule.
struct CoupletRules {
  bool length = true;       // both lines have the same number of characters
  bool punctuation = true;  // both lines have the same punctuation at the same places
  bool places = true;       // apart from punctuation, the lines differ at every place
  bool repeats = true;      // the second line repeats a character only where the first repeats one
  bool mirrored = true;     // the second line repeats a character wherever the first repeats one

  bool all() const { return length && punctuation && places && repeats && mirrored; }
};

// Checks the rules for a first and a second line, both in UTF-8.
CoupletRules KeptRules(const std::string& first, const std::string& second);

}  // namespace linnet

#endif  // LINNET_TASKS_COUPLET_RULES_H_
