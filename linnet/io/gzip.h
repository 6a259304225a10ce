// Reads files that may be gzipped.
//
//   std::vector<uint8_t> bytes = ReadGzipOrPlain("train-images-idx3-ubyte.gz", 1 << 30);
#ifndef LINNET_IO_GZIP_H_
#define LINNET_IO_GZIP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace linnet {

// The file's contents, decompressed if it begins like a gzip file (whatever its name). Throws
// InputError if it is unreadable, truncated, corrupt, or holds more than max_bytes.
std::vector<uint8_t> ReadGzipOrPlain(const std::string& path, size_t max_bytes);

}  // namespace linnet

#endif  // LINNET_IO_GZIP_H_
