// Reads gzip and tar files, as linnet reads downloads and CIFAR-10.
#include "fuzz/target.h"
#include "linnet/io/gzip.h"
#include "linnet/io/tar.h"

namespace linnet::fuzz {

const FuzzTarget kArchive = {"archive", [](std::span<const std::byte> bytes) {
                               const MemoryFile file(bytes);
                               const auto archive = ReadGzipOrPlain(file.path(), size_t{1} << 26);
                               // Reads each file's last byte: a sanitizer detects wrong sizes.
                               volatile uint8_t last = 0;
                               for (const TarFile& each : ReadTar(archive, "input")) {
                                 if (!each.bytes.empty()) last = each.bytes.back();
                               }
                               static_cast<void>(last);
                             }};

}  // namespace linnet::fuzz
