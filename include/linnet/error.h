// Exceptions. A message is one line: where the error is, what is wrong, and what to do.
//
//   try {
//     auto model = linnet::Model::Open(path);
//   } catch (const linnet::InputError& error) {     // the user can fix it: a bad file, a bad value
//     std::cerr << error.what() << "\n";
//   } catch (const linnet::Error& error) {          // or a failure during the work
//     ...
//   }
//
// Every exception that linnet throws on purpose is an InputError or a RuntimeError.
#ifndef LINNET_ERROR_H_
#define LINNET_ERROR_H_

#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "linnet/export.h"

namespace linnet {

// The names of an enumeration's values (linnet/model/names.h).
template <class Enum>
struct EnumNames;

namespace internal {

// An argument of StrCat(), as text. Strings are not copied; other values are formatted into own_.
// This class, rather than StrCat(), formats the values to save compilation time: its code is
// compiled once per type, that of StrCat() once per combination of types.
class Part {
 public:
  Part(const char* text) : text_(text == nullptr ? "(null)" : text) {}
  Part(const std::string& text) : text_(text) {}
  Part(std::string_view text) : text_(text) {}
  template <typename T>
  Part(const T& value) : own_(TextOf(value)), text_(own_) {}
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  std::string_view text() const { return text_; }

 private:
  template <typename T>
  static std::string TextOf(const T& value) {
    if constexpr (requires { EnumNames<T>::kNames; }) {
      return EnumNames<T>::kNames[static_cast<size_t>(value)];
    } else if constexpr (std::is_floating_point_v<T>) {
      char text[32];
      std::snprintf(text, sizeof(text), "%g", static_cast<double>(value));
      return text;
    } else if constexpr (std::is_integral_v<T> && sizeof(T) == 1 && !std::is_same_v<T, bool>) {
      return {static_cast<char>(value)};
    } else if constexpr (std::is_integral_v<T>) {
      return std::to_string(value);
    } else {
      return Streamed<T, std::ostringstream>(value);
    }
  }
  // `Stream` is a template parameter so that this header can do without <sstream>, which would make
  // every program larger. A caller with a streamable value includes <sstream> (see StrCat()).
  template <typename T, typename Stream>
  static std::string Streamed(const T& value) {
    Stream out;
    out << value;
    return out.str();
  }

  std::string own_;
  std::string_view text_;
};

inline std::string Concatenate(std::initializer_list<Part> parts) {
  std::string all;
  for (const Part& part : parts) all += part.text();
  return all;
}

}  // namespace internal

// Concatenates strings, numbers, enumerators and streamable values as text: StrCat("layer ", 3,
// ": ", 0.5). Numbers look as in streams: a float has six significant digits, int8_t and uint8_t
// are characters. A value of another type needs an operator<< and #include <sstream>.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  return internal::Concatenate({parts...});
}

// The base class of InputError and RuntimeError. Its constructors are protected, so that it can be
// neither thrown nor caught by value, which would lose the error's type.
class LINNET_API Error : public std::runtime_error {
 protected:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override = default;
};

// Bad usage, a bad file or a bad setting. The message is the concatenation of `parts`.
class LINNET_API InputError : public Error {
 public:
  template <typename First, typename... Rest>
  explicit InputError(const First& first, const Rest&... rest) : Error(StrCat(first, rest...)) {}
};

// A failure during the work: a full disk, a NaN. The message is the concatenation of `parts`.
class LINNET_API RuntimeError : public Error {
 public:
  template <typename First, typename... Rest>
  explicit RuntimeError(const First& first, const Rest&... rest) : Error(StrCat(first, rest...)) {}
};

}  // namespace linnet

#endif  // LINNET_ERROR_H_
