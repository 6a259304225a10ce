// Defines functions of C++20 that old versions of libc++ lack. Debian 12's emscripten has libc++
// 13. The build for the browser includes this header before every source file.
#ifndef LINNET_WEB_ENGINE_OLD_LIBCXX_H_
#define LINNET_WEB_ENGINE_OLD_LIBCXX_H_

#ifdef __cplusplus
#include <algorithm>
#include <bit>
#include <iterator>
#include <version>

namespace std {

#if _LIBCPP_VERSION < 14000
template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}

#endif

#if _LIBCPP_VERSION < 15000
namespace ranges {
template <class A, class B>
bool equal(const A& a, const B& b) {
  return std::equal(std::begin(a), std::end(a), std::begin(b), std::end(b));
}
}  // namespace ranges
#endif

}  // namespace std
#endif

#endif  // LINNET_WEB_ENGINE_OLD_LIBCXX_H_
