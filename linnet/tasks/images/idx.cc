#include "linnet/tasks/images/idx.h"

#include <cstddef>

#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/gzip.h"

namespace linnet {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;  // about twice the largest MNIST variant
constexpr uint8_t kUnsignedByte = 0x08;
constexpr const char* kFetchAgain = "; copy or download it again";

std::string Bytes(uint64_t n) { return FormatBytes(static_cast<double>(n)); }

}  // namespace

IdxArray ReadIdx(const std::string& path) {
  IdxArray array;
  std::vector<uint8_t>& bytes = array.data;
  bytes = ReadGzipOrPlain(path, kMaxBytes);

  // Header: two zero bytes, the element type (one byte), the number of dimensions (one byte), and
  // each dimension (four bytes).
  if (bytes.size() < 4) {
    throw InputError(path, ": truncated: it holds only ", Bytes(bytes.size()), kFetchAgain);
  }
  if (bytes[0] != 0 || bytes[1] != 0 || bytes[3] == 0) {
    throw InputError(path, ": not an IDX file; check the path");
  }
  if (bytes[2] != kUnsignedByte) {
    throw InputError(path, ": its elements are of IDX type ", int{bytes[2]},
                     "; only unsigned bytes (type 8) are read");
  }
  const size_t header = 4 + 4 * size_t{bytes[3]};
  if (bytes.size() < header) {
    throw InputError(path, ": truncated within its header", kFetchAgain);
  }
  uint64_t promised = 1;
  std::string shape_text;
  for (size_t at = 4; at < header; at += 4) {
    const uint32_t dimension = uint32_t{bytes[at]} << 24 | uint32_t{bytes[at + 1]} << 16 |
                               uint32_t{bytes[at + 2]} << 8 | uint32_t{bytes[at + 3]};
    array.shape.push_back(dimension);
    shape_text += StrCat(at > 4 ? " x " : "", dimension);
    if (__builtin_mul_overflow(promised, uint64_t{dimension}, &promised)) promised = UINT64_MAX;
  }
  const uint64_t held = bytes.size() - header;
  if (promised > held) {
    throw InputError(path, ": truncated: its header promises ", shape_text, " bytes (",
                     Bytes(promised), ") but ", Bytes(held), " follow", kFetchAgain);
  }
  if (promised < held) {
    throw InputError(path, ": corrupt: its header promises ", shape_text, " bytes (",
                     Bytes(promised), ") but ", Bytes(held), " follow", kFetchAgain);
  }
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(header));
  return array;
}

}  // namespace linnet
