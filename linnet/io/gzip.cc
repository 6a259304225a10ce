#include "linnet/io/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <new>
#include <span>

#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/file.h"

namespace linnet {
namespace {

bool BeginsLikeGzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

struct Inflater {
  Inflater() {
    if (inflateInit2(&stream, 15 + 16) != Z_OK) throw std::bad_alloc();  // + 16: gzip framing
  }
  ~Inflater() { inflateEnd(&stream); }
  z_stream stream{};
};

InputError TooLarge(const std::string& path, size_t max_bytes) {
  return InputError(path, ": holds more than ", FormatBytes(static_cast<double>(max_bytes)),
                    ", which is not expected here; check the path");
}

}  // namespace

std::vector<uint8_t> ReadGzipOrPlain(const std::string& path, size_t max_bytes) {
  const MappedFile file(path);
  std::span<const std::byte> input = file.bytes();
  if (!BeginsLikeGzip(input)) {
    if (input.size() > max_bytes) throw TooLarge(path, max_bytes);
    const uint8_t* begin = reinterpret_cast<const uint8_t*>(input.data());
    return std::vector<uint8_t>(begin, begin + input.size());
  }

  Inflater inflater;
  z_stream& stream = inflater.stream;
  std::vector<uint8_t> output;
  std::vector<uint8_t> block(size_t{1} << 18);
  while (true) {
    // zlib has 32-bit byte counts.
    const size_t offered = std::min(input.size(), size_t{1} << 30);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input.data()));
    stream.avail_in = static_cast<uInt>(offered);
    stream.next_out = block.data();
    stream.avail_out = static_cast<uInt>(block.size());
    const int status = inflate(&stream, Z_NO_FLUSH);
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    if (status == Z_BUF_ERROR) {  // input exhausted before the end of the stream
      throw InputError(path, ": truncated: the gzip data stops early; copy or download it again");
    }
    if (status != Z_OK && status != Z_STREAM_END) {
      throw InputError(path, ": corrupt gzip data (", stream.msg ? stream.msg : "unknown error",
                       "); copy or download it again");
    }
    input = input.subspan(offered - stream.avail_in);
    const size_t produced = block.size() - stream.avail_out;
    if (produced > max_bytes - output.size()) throw TooLarge(path, max_bytes);
    output.insert(output.end(), block.begin(), block.begin() + static_cast<ptrdiff_t>(produced));

    if (status == Z_STREAM_END) {
      if (input.empty()) return output;
      // gzip files may be concatenated.
      if (!BeginsLikeGzip(input)) {
        throw InputError(path, ": corrupt: ", FormatBytes(static_cast<double>(input.size())),
                         " follow the end of the gzip data; copy or download it again");
      }
      inflateReset(&stream);
    }
  }
}

}  // namespace linnet
