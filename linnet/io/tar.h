// Reads the files of an in-memory tar archive.
//
//   std::vector<uint8_t> archive = ReadGzipOrPlain("cifar-10-binary.tar.gz", 1 << 30);
//   for (const TarFile& file : ReadTar(archive, "cifar-10-binary.tar.gz")) {
//     Use(file.name, file.bytes);
//   }
#ifndef LINNET_IO_TAR_H_
#define LINNET_IO_TAR_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace linnet {

struct TarFile {
  std::string name;                // as stored, folders included
  std::span<const uint8_t> bytes;  // within the archive
};

// The regular files of an archive (POSIX ustar, or GNU tar with names of up to 100 bytes), in
// archive order; folders, links and attributes are skipped. Throws InputError, with a message that
// begins with `label`, if the bytes are not a tar archive or the archive is corrupt or truncated.
std::vector<TarFile> ReadTar(std::span<const uint8_t> archive, const std::string& label);

// Extracts the files whose names begin with `root` ("an4/") to `folder` and returns their number.
// Removes this prefix from the names and creates folders as needed. Existing files are replaced if
// their contents differ. Throws InputError, and writes nothing, if the archive is invalid, if it
// has no file under `root`, or if a file name is unsafe (absolute, with "..", or ending in "/").
size_t UnpackTar(std::span<const uint8_t> archive, const std::string& label,
                 const std::string& root, const std::string& folder);

}  // namespace linnet

#endif  // LINNET_IO_TAR_H_
