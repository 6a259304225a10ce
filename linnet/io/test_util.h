// Helpers for tests that use files: a temporary folder, the message of an Error, paths of data
// sets.
//
//   TempDir dir;
//   WriteFileAtomically(dir / "a.idx", bytes);
//   EXPECT_THAT(ErrorOf([&] { ReadIdx(dir / "a.idx"); }), HasSubstr("truncated"));
#ifndef LINNET_IO_TEST_UTIL_H_
#define LINNET_IO_TEST_UTIL_H_

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/error.h"

namespace linnet {

// A new, empty folder, removed with its contents.
class TempDir {
 public:
  TempDir() : path_((std::filesystem::temp_directory_path() / "linnet-test-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw RuntimeError(path_, ": cannot be created");
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // Number of entries, to check that a failed write leaves nothing behind.
  int Entries() const {
    int n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++n;
    return n;
  }

 private:
  std::string path_;
};

// "input: MESSAGE" or "runtime: MESSAGE" of the Error that `body` throws, "" if it throws none.
inline std::string ErrorOf(FunctionRef<void()> body) {
  try {
    body();
  } catch (const InputError& error) {
    return StrCat("input: ", error.what());
  } catch (const RuntimeError& error) {
    return StrCat("runtime: ", error.what());
  }
  return "";
}

// An entry of a tar archive.
struct TestTarEntry {
  std::string name, bytes;
  char type = '0';  // '0': a regular file, '5': a folder
};
// Makes a tar archive.
inline std::string TestTar(const std::vector<TestTarEntry>& entries) {
  std::string tar;
  const auto pad = [&] { tar.resize((tar.size() + 511) / 512 * 512); };
  for (const TestTarEntry& entry : entries) {
    char header[513] = {};
    std::snprintf(header, 100, "%s", entry.name.c_str());
    std::snprintf(header + 124, 12, "%011zo", entry.bytes.size());
    std::snprintf(header + 148, 9, "        ");
    header[156] = entry.type;
    std::snprintf(header + 257, 9, "ustar%c00", 0);
    unsigned sum = 0;
    for (int i = 0; i < 512; ++i) sum += static_cast<unsigned char>(header[i]);
    std::snprintf(header + 148, 8, "%06o", sum);
    tar += std::string(header, 512) + entry.bytes;
    pad();
  }
  return tar + std::string(1024, '\0');
}

// The path of a data set under $LINNET_DATA, or "" if it does not exist.
inline std::string TestData(const std::string& name) {
  const char* root = std::getenv("LINNET_DATA");
  if (root == nullptr) return "";
  const std::string path = StrCat(root, "/", name);
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace linnet

#endif  // LINNET_IO_TEST_UTIL_H_
