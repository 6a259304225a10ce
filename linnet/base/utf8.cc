#include "linnet/base/utf8.h"

#include <cstdint>

namespace linnet {
namespace {

// Whether a code point is printable in the sense of IsPrintable(). The line separators U+2028 and
// U+2029 are not.
bool Shows(char32_t c) {
  const auto in = [c](char32_t low, char32_t high) { return c >= low && c <= high; };
  return !(c < 0x20 || in(0x7f, 0x9f) || c == 0x061c || in(0x200e, 0x200f) || in(0x2028, 0x202e) ||
           in(0x2066, 0x2069));
}

}  // namespace

std::optional<CodePoint> NextCodePoint(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  if (first < 0x80) return CodePoint{first, 1};
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() - at < bytes) return std::nullopt;
  char32_t value = first & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return std::nullopt;
    value = value << 6 | (byte(at + i) & 0x3f);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[bytes] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
    return std::nullopt;
  }
  return CodePoint{value, bytes};
}

std::u32string CodePoints(std::string_view text) {
  std::u32string points;
  for (size_t at = 0; at < text.size();) {
    const auto next = NextCodePoint(text, at);
    points.push_back(next ? next->value : 0xfffd);
    at += next ? next->bytes : 1;
  }
  return points;
}

void AppendUtf8(char32_t value, std::string& text) {
  const auto add = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (value < 0x80) return add(value);
  if (value < 0x800) {
    add(0xc0 | value >> 6);
  } else {
    if (value < 0x10000) {
      add(0xe0 | value >> 12);
    } else {
      add(0xf0 | value >> 18);
      add(0x80 | (value >> 12 & 0x3f));
    }
    add(0x80 | (value >> 6 & 0x3f));
  }
  add(0x80 | (value & 0x3f));
}

std::string Printable(std::string_view text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const auto next = NextCodePoint(text, at);
    const size_t bytes = next ? next->bytes : 1;
    shown += next && Shows(next->value) ? text.substr(at, bytes) : "?";
    at += bytes;
  }
  return shown;
}

bool IsPrintable(std::string_view text) { return Printable(text) == text; }

}  // namespace linnet
