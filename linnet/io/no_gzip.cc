// Implements gzip.h for builds without zlib: reads plain files only.
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/gzip.h"

namespace linnet {

std::vector<uint8_t> ReadGzipOrPlain(const std::string& path, size_t max_bytes) {
  const std::string bytes = ReadFile(path, max_bytes);
  if (bytes.starts_with("\x1f\x8b")) {
    throw InputError(path, ": gzipped, and this build has no zlib; decompress the file first");
  }
  return {bytes.begin(), bytes.end()};
}

}  // namespace linnet
