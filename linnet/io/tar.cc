#include "linnet/io/tar.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string_view>

#include "linnet/error.h"
#include "linnet/io/file.h"

namespace linnet {
namespace {

// A header takes one block. Offsets of its fields: name 0, size 124, checksum 148, type 156, format
// ("ustar") 257, folders of a long name 345.
constexpr size_t kBlock = 512;

// A text field of the header, which ends at a NUL byte or at the field's end.
std::string Text(std::span<const uint8_t> field) {
  return {field.begin(), std::find(field.begin(), field.end(), 0)};
}

// Parses an octal number, which may follow spaces and ends at a space, a NUL byte or the field's
// end. Returns false if it is invalid.
bool ParseOctal(std::span<const uint8_t> field, uint64_t& value) {
  size_t at = 0;
  while (at < field.size() && field[at] == ' ') ++at;
  const size_t digits = at;
  for (value = 0; at < field.size() && field[at] >= '0' && field[at] <= '7'; ++at) {
    value = value << 3 | static_cast<uint64_t>(field[at] - '0');  // 12 digits at most: 36 bits
  }
  return at > digits && (at == field.size() || field[at] == ' ' || field[at] == 0);
}

// The sum of the header's bytes, with the checksum field counted as spaces.
uint64_t Checksum(std::span<const uint8_t> header) {
  const uint64_t all = std::accumulate(header.begin(), header.end(), uint64_t{0});
  const auto own = header.subspan(148, 8);
  return all - std::accumulate(own.begin(), own.end(), uint64_t{0}) + 8 * ' ';
}

bool Contains(std::span<const uint8_t> content, std::string_view text) {
  return std::search(content.begin(), content.end(), text.begin(), text.end()) != content.end();
}

}  // namespace

std::vector<TarFile> ReadTar(std::span<const uint8_t> archive, const std::string& label) {
  std::vector<TarFile> files;
  for (size_t at = 0;;) {
    if (archive.size() - at < kBlock) {
      // A complete archive ends with blocks of zeros.
      throw InputError(label, at == 0 ? ": not a tar archive; check the path"
                                      : ": truncated: the archive's end is missing; copy or "
                                        "download it again");
    }
    const std::span<const uint8_t> header = archive.subspan(at, kBlock);
    if (std::all_of(header.begin(), header.end(), [](uint8_t x) { return x == 0; })) return files;
    uint64_t size = 0, checksum = 0;
    if (!ParseOctal(header.subspan(148, 8), checksum) || checksum != Checksum(header) ||
        !ParseOctal(header.subspan(124, 12), size)) {
      throw InputError(label, at == 0 ? ": not a tar archive; check the path"
                                      : ": corrupt: a header's checksum is wrong; copy or download "
                                        "it again");
    }
    at += kBlock;
    // In the ustar format, a second field holds the first folders of a long name.
    const std::string prefix = header[257] == 'u' ? Text(header.subspan(345, 155)) : "";
    const std::string name = (prefix.empty() ? "" : prefix + "/") + Text(header.first(100));
    if (size > archive.size() - at) {
      throw InputError(label, ": truncated within ", name, "; copy or download it again");
    }
    const std::span<const uint8_t> content = archive.subspan(at, size);
    // Entries for a name that does not fit into a header: type 'L' in GNU tar, 'x' in POSIX.
    if (header[156] == 'L' || (header[156] == 'x' && Contains(content, " path="))) {
      throw InputError(label,
                       ": has names that do not fit into a header; linnet cannot read those, so "
                       "unpack the archive with tar");
    }
    if (header[156] == '0' || header[156] == 0) files.push_back({name, content});
    const uint64_t padded = (size + kBlock - 1) / kBlock * kBlock;
    at += std::min<uint64_t>(padded, archive.size() - at);
  }
}

size_t UnpackTar(std::span<const uint8_t> archive, const std::string& label,
                 const std::string& root, const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<TarFile> files = ReadTar(archive, label);
  std::erase_if(files, [&](const TarFile& file) { return !file.name.starts_with(root); });
  if (files.empty()) throw InputError(label, ": contains no files in ", root, "; check the path");
  for (TarFile& file : files) {
    file.name.erase(0, root.size());
    const fs::path path(file.name);
    if (path.empty() || !path.has_filename() || path.is_absolute() ||
        std::find(path.begin(), path.end(), "..") != path.end()) {
      throw InputError(label, ": contains the unsafe file name ", root, file.name,
                       "; download the archive from elsewhere");
    }
  }
  for (const TarFile& file : files) {
    const fs::path path = fs::path(folder) / file.name;
    MakeFolder(path.parent_path());
    std::error_code error;
    const auto bytes = std::as_bytes(file.bytes);
    if (fs::is_regular_file(path, error) && fs::file_size(path, error) == bytes.size() &&
        std::ranges::equal(MappedFile(path.string()).bytes(), bytes)) {
      continue;
    }
    WriteFileAtomically(path.string(), bytes);
  }
  return files.size();
}

}  // namespace linnet
