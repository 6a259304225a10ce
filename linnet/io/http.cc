#include "linnet/io/http.h"

#include <curl/curl.h>
#include <strings.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <memory>
#include <new>
#include <string_view>

#include "linnet/error.h"
#include "linnet/version.h"

namespace linnet {
namespace {

constexpr long kSlowBytesPerSecond = 100;
constexpr long kMaxRedirects = 10;

// The first offset in a Content-Range header, such as 1000 in "Content-Range: bytes
// 1000-1999/2000"; -1 for any other header.
int64_t RangeBegin(std::string_view header) {
  constexpr std::string_view kName = "content-range:";
  if (header.size() < kName.size() || strncasecmp(header.data(), kName.data(), kName.size()) != 0) {
    return -1;
  }
  const size_t digits = header.find_first_of("0123456789");
  if (digits == header.npos) return -1;
  int64_t first = -1;
  std::from_chars(header.data() + digits, header.data() + header.size(), first);
  return first;
}

// A transfer and its libcurl callbacks, which keep exceptions in `thrown` for HttpGet to rethrow.
struct Transfer {
  CURL* curl;
  const HttpRequest& request;
  HttpSink& sink;
  HttpResult result = {};
  int64_t range_begin = -1;  // start of the response's range; -1: none
  bool begun = false, ended_by_sink = false;
  std::exception_ptr thrown = nullptr;

  // Checks the status and the range, then calls sink.Begin(). Returns false to end the transfer.
  bool Begin() {
    long status = 0;
    curl_off_t length = -1;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    const bool part = status == 206;  // the requested range, not the whole file
    if (!part && status != 200) {
      result.error = StrCat("HTTP status ", status);
      return false;
    }
    if (part && range_begin != static_cast<int64_t>(request.from)) {
      result.range_refused = true;
      result.error = "sends a different range than requested";
      return false;
    }
    ended_by_sink = !sink.Begin(part ? request.from : 0, length);
    return !ended_by_sink;
  }

  bool Write(std::span<const std::byte> bytes) {
    if (!begun && !Begin()) return false;
    begun = true;
    ended_by_sink = !sink.Write(bytes);
    return !ended_by_sink;
  }

  static size_t OnHeader(char* data, size_t, size_t size, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const std::string_view header(data, size);
    // A status line begins a new response, for example after a redirect.
    if (header.starts_with("HTTP/")) transfer.range_begin = -1;
    if (const int64_t first = RangeBegin(header); first >= 0) transfer.range_begin = first;
    return size;
  }

  static size_t OnBody(char* data, size_t, size_t size, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    try {
      return transfer.Write(std::as_bytes(std::span(data, size))) ? size : 0;
    } catch (...) {
      transfer.thrown = std::current_exception();
      return 0;
    }
  }

  static int OnProgress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& transfer = *static_cast<Transfer*>(self);
    try {
      transfer.ended_by_sink = transfer.ended_by_sink || transfer.sink.Stop();
    } catch (...) {
      transfer.thrown = std::current_exception();
    }
    return transfer.ended_by_sink || transfer.thrown ? 1 : 0;
  }
};

}  // namespace

HttpResult HttpGet(const HttpRequest& request, HttpSink& sink) {
  static const CURLcode loaded = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (loaded != CURLE_OK) throw RuntimeError("libcurl: ", curl_easy_strerror(loaded));
  const std::unique_ptr<CURL, void (*)(CURL*)> handle(curl_easy_init(), curl_easy_cleanup);
  CURL* curl = handle.get();
  if (curl == nullptr) throw std::bad_alloc();

  Transfer transfer{.curl = curl, .request = request, .sink = sink};
  char message[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "linnet/" LINNET_VERSION);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(request.connect_seconds));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.stall_seconds));
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, Transfer::OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Transfer::OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, Transfer::OnProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  // Not CURLOPT_RESUME_FROM, which fails if the server sends the whole file.
  const std::string range = StrCat(request.from, "-");
  if (request.from > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());

  const CURLcode code = curl_easy_perform(curl);
  HttpResult& result = transfer.result;
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  if (transfer.ended_by_sink || !result.error.empty()) return result;
  if (code == CURLE_OK) {
    // If the response has no body, nothing has called Begin() yet to check status and range.
    result.complete = transfer.begun || transfer.Begin();
    return result;
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  if (code == CURLE_HTTP_RETURNED_ERROR) {
    result.range_refused = status == 416;
    result.error = StrCat("HTTP status ", status);
  } else {
    result.error = message[0] != '\0' ? message : curl_easy_strerror(code);
    std::replace_if(
        result.error.begin(), result.error.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  }
  return result;
}

}  // namespace linnet
