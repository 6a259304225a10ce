// Functions of C++20 that libc++ 13 lacks, which comes with Debian 12's emscripten. Included before
// every file of the build for the browser.
#ifndef LINNET_WEB_ENGINE_OLD_LIBCXX_H_
#define LINNET_WEB_ENGINE_OLD_LIBCXX_H_

#ifdef __cplusplus
#include <algorithm>
#include <bit>
#include <iterator>
#include <version>

#if _LIBCPP_VERSION < 14000
namespace std {

template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}

namespace ranges {
template <class A, class B>
bool equal(const A& a, const B& b) {
  return std::equal(std::begin(a), std::end(a), std::begin(b), std::end(b));
}
}  // namespace ranges

}  // namespace std
#endif
#endif

#endif  // LINNET_WEB_ENGINE_OLD_LIBCXX_H_
