// Fuzz targets: each reads bytes as linnet reads a user's file or request. A target may throw an
// Error, as linnet's reader does for bad input; anything else (a crash, another exception, a
// sanitizer's report, too much memory) is a finding.
//
//   fuzz/run 60 archive                    # coverage-guided, with clang's libFuzzer
//   build/release/bin/fuzz_inputs_test     # all inputs in fuzz/inputs, in every build
//
// To add a target: write NAME.cc with a FuzzTarget; add it to kFuzzTargets, CMakeLists.txt and
// fuzz/run, which also lists seeds; put an input, and later each input that caused a finding, into
// fuzz/inputs/NAME/.
#ifndef LINNET_FUZZ_TARGET_H_
#define LINNET_FUZZ_TARGET_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace linnet {

class Model;

namespace fuzz {

struct FuzzTarget {
  const char* name;
  void (*read)(std::span<const std::byte> bytes);
};

extern const FuzzTarget kArchive, kAudio, kCheckpoint, kFla, kGrammar, kImages, kPyTorch, kRequest,
    kSpec, kSpeechSet, kState, kText, kTokenizer;

inline constexpr const FuzzTarget* kFuzzTargets[] = {
    &kArchive, &kAudio, &kCheckpoint, &kFla,   &kGrammar, &kImages,   &kPyTorch,
    &kRequest, &kSpec,  &kSpeechSet,  &kState, &kText,    &kTokenizer};

// Runs target.read() and catches Error.
void ReadInput(const FuzzTarget& target, std::span<const std::byte> bytes);

// A file in memory, for readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const;

 private:
  int fd_;
};

// The text model of tests/checkpoints, opened once.
std::shared_ptr<const Model> TextModel();

}  // namespace fuzz
}  // namespace linnet

#endif  // LINNET_FUZZ_TARGET_H_
