// Errors: one line with the place, the fault and the remedy.
//
//   try {
//     auto model = linnet::Model::Open(path);
//   } catch (const linnet::InputError& error) {      // the user can fix it: a bad file, a bad value
//     std::cerr << error.what() << "\n";
//   } catch (const linnet::Error& error) {           // or a failure during the work
//     ...
//   }
//
// Every exception that linnet throws on purpose is an InputError or a RuntimeError.
#ifndef LINNET_ERROR_H_
#define LINNET_ERROR_H_

#include <sstream>
#include <stdexcept>
#include <string>

#include "linnet/export.h"

namespace linnet {

// Concatenates anything streamable: StrCat("layer ", 3, ": ", 0.5).
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// The base of both. Cannot be thrown or copied itself, so that no error loses its type.
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
