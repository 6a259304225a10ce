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

// Reads a file and decompresses it if it begins like a gzip file, whatever its name. Throws
// InputError if the file is unreadable, truncated or corrupt, or if the result would be larger than
// max_bytes.
std::vector<uint8_t> ReadGzipOrPlain(const std::string& path, size_t max_bytes);

}  // namespace linnet

#endif  // LINNET_IO_GZIP_H_
