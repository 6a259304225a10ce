// Runs every input in fuzz/inputs, whole and truncated, through its target.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "fuzz/target.h"
#include "linnet/io/file.h"

namespace linnet::fuzz {
namespace {

class Inputs : public testing::TestWithParam<const FuzzTarget*> {};

TEST_P(Inputs, AreReadOrRefused) {
  const std::filesystem::path folder =
      std::filesystem::path(LINNET_SOURCE) / "fuzz/inputs" / GetParam()->name;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry);
  std::sort(files.begin(), files.end());
  EXPECT_FALSE(files.empty()) << folder;
  for (const auto& path : files) {
    SCOPED_TRACE(path.string());
    const std::string bytes = ReadFile(path.string());
    EXPECT_NO_THROW(ReadInput(*GetParam(), std::as_bytes(std::span(bytes))));
    // Truncated copies too.
    for (size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 23) {
      EXPECT_NO_THROW(ReadInput(*GetParam(), std::as_bytes(std::span(bytes.data(), size)))) << size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Inputs, testing::ValuesIn(kFuzzTargets),
                         [](const auto& info) { return info.param->name; });

}  // namespace
}  // namespace linnet::fuzz
