// The rules of couplets that a program can check.
//
//   const CoupletRules kept = KeptRules("海上生明月", "天涯共此时");
//   kept.all()
#ifndef LINNET_TASKS_COUPLET_RULES_H_
#define LINNET_TASKS_COUPLET_RULES_H_

#include <string>

namespace linnet {

// Whether a character is punctuation, in Chinese or Latin text.
bool IsPunctuation(char32_t c);

// Whether a second line keeps each rule.
struct CoupletRules {
  bool length = true;       // it has as many characters as the first line
  bool punctuation = true;  // it has the first line's punctuation, at the same places
  bool places = true;       // every other character differs from the first line's at its place
  bool repeats = true;      // it repeats a character only where the first line repeats one
  bool mirrored = true;     // where the first line repeats a character, it repeats one too

  bool all() const { return length && punctuation && places && repeats && mirrored; }
};

// Checks the rules for a first and a second line, both in UTF-8.
CoupletRules KeptRules(const std::string& first, const std::string& second);

}  // namespace linnet

#endif  // LINNET_TASKS_COUPLET_RULES_H_
