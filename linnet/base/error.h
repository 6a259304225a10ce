// Errors: the failure, its location and the remedy, in one line.
//
//   throw InputError(path, ": truncated at byte ", n, "; download the file again");
//
// Libraries throw; only the command line prints and exits (exit_code()).
#ifndef LINNET_BASE_ERROR_H_
#define LINNET_BASE_ERROR_H_

#include <sstream>
#include <stdexcept>
#include <string>

namespace linnet {

// Concatenates anything streamable: StrCat("layer ", 3, ": ", 0.5).
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

class Error : public std::runtime_error {
 public:
  enum class Kind {
    kInput,    // bad usage, bad file, bad setting: the user can fix it (exit code 2)
    kRuntime,  // a failure during work: a full disk, a NaN (exit code 1)
  };
  Error(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const { return kind_; }
  int exit_code() const { return kind_ == Kind::kInput ? 2 : 1; }

 private:
  Kind kind_;
};

template <typename... Parts>
Error InputError(const Parts&... parts) {
  return Error(Error::Kind::kInput, StrCat(parts...));
}

template <typename... Parts>
Error RuntimeError(const Parts&... parts) {
  return Error(Error::Kind::kRuntime, StrCat(parts...));
}

}  // namespace linnet

#endif  // LINNET_BASE_ERROR_H_
