// Names of enumerators, as used in files and options.
//
//   NameOf(Activation::kGelu)                              // "gelu"
//   ParseName<Activation>("gelu", "activation") // or InputError: unknown activation 'x'; choose...
//
// An enumeration lists its names once, in the order of its values:
//
//   template <> struct EnumNames<Activation> {
//     static constexpr const char* kNames[] = {"relu", "gelu"};
//   };
#ifndef LINNET_MODEL_NAMES_H_
#define LINNET_MODEL_NAMES_H_

#include <cstddef>
#include <iosfwd>
#include <iterator>
#include <string>

#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet {

template <class Enum>
struct EnumNames;

template <class Enum>
const char* NameOf(Enum value) {
  return EnumNames<Enum>::kNames[static_cast<size_t>(value)];
}

template <class Enum>
requires requires { EnumNames<Enum>::kNames; }
std::ostream& operator<<(std::ostream& out, Enum value) { return out << NameOf(value); }

// "a, b or c"
template <class Enum>
std::string Choices() {
  constexpr size_t count = std::size(EnumNames<Enum>::kNames);
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += i == 0 ? "" : i + 1 == count ? " or " : ", ";
    text += EnumNames<Enum>::kNames[i];
  }
  return text;
}

// Throws InputError for an unknown name; `what` is the option's name in the message.
template <class Enum>
Enum ParseName(const std::string& name, const std::string& what) {
  size_t i = 0;
  for (const char* known : EnumNames<Enum>::kNames) {
    if (name == known) return static_cast<Enum>(i);
    ++i;
  }
  throw InputError("unknown ", what, " ", Quote(name), "; choose ", Choices<Enum>());
}

}  // namespace linnet

#endif  // LINNET_MODEL_NAMES_H_
