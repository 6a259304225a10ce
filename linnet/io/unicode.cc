#include "linnet/io/unicode.h"

#include <algorithm>

#include "linnet/error.h"
#include "linnet/io/json.h"

#ifdef LINNET_UNICODE
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <cstdlib>
#endif

namespace linnet {

#ifdef LINNET_UNICODE

Regex::Regex(const std::string& pattern, const std::string& where) : where_(where) {
  constexpr size_t kLongest = 4096;
  if (pattern.size() > kLongest) {
    throw InputError(where, ": a pattern of ", pattern.size(), " bytes; at most ", kLongest,
                     " are supported");
  }
  int error = 0;
  size_t place = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, std::size(message));
    throw InputError(where, ": the pattern ", Quote(pattern), " is invalid at byte ", place, ": ",
                     reinterpret_cast<const char*>(message));
  }
  code_ = {code, [](const pcre2_code* old) { pcre2_code_free(const_cast<pcre2_code*>(old)); }};
}

void Regex::ForMatches(std::string_view text, FunctionRef<void(size_t, size_t)> body) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> limits(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  pcre2_set_match_limit(limits.get(), 1'000'000);
  pcre2_set_heap_limit(limits.get(), 64 << 10);  // kB
  const auto* data = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t at = 0; at < text.size();) {
    const int found =
        pcre2_match(code, data, text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), limits.get());
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) {
      throw InputError(where_, ": splitting the text takes too many steps at byte ", at);
    }
    const size_t* ends = pcre2_get_ovector_pointer(match.get());  // begin and end of the match
    // \K in a lookaround can move the beginning of a match past its end or before `at`.
    if (ends[0] < ends[1] && ends[0] >= at) body(ends[0], ends[1]);
    at = std::max(at, ends[1]);
    if (ends[0] >= ends[1]) {  // empty match: continue after the next character
      do ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
    }
  }
}

std::string ToNfc(std::string_view text) {
  const bool ascii = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (ascii) return std::string(text);
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(composed, std::free);
  if (size < 0) throw InputError("the text has no normal form C: ", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(composed), static_cast<size_t>(size)};
}

#else

namespace {

[[noreturn]] void Missing() {
  throw InputError("this build cannot read tokenizer.json; build with PCRE2 and utf8proc");
}

}  // namespace

Regex::Regex(const std::string&, const std::string&) { Missing(); }
void Regex::ForMatches(std::string_view, FunctionRef<void(size_t, size_t)>) const { Missing(); }
std::string ToNfc(std::string_view) { Missing(); }

#endif

}  // namespace linnet
