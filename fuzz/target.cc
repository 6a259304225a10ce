#include "fuzz/target.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "linnet/error.h"
#include "linnet/model.h"

namespace linnet::fuzz {

void ReadInput(const FuzzTarget& target, std::span<const std::byte> bytes) {
  try {
    target.read(bytes);
  } catch (const Error&) {  // the bytes are refused
  }
}

MemoryFile::MemoryFile(std::span<const std::byte> bytes) : fd_(memfd_create("input", MFD_CLOEXEC)) {
  if (fd_ < 0 || write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    std::abort();
  }
}

MemoryFile::~MemoryFile() { close(fd_); }

std::string MemoryFile::path() const { return StrCat("/proc/self/fd/", fd_); }

std::shared_ptr<const Model> TextModel() {
  static const auto model = Model::Open(LINNET_SOURCE "/tests/checkpoints/text-byte.safetensors");
  return model;
}

}  // namespace linnet::fuzz
