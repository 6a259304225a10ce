// Downloads one file over http or https, from its beginning or from a byte offset.
//
//   const HttpResult got = HttpGet({.url = "https://host/a.gz", .from = 1000}, sink);
//   if (!got.complete) std::cerr << got.error;      // "HTTP status 404", "Could not resolve ..."
//
// Follows redirects, but only to http and https URLs. Uses the proxies that libcurl reads from the
// environment (http_proxy, HTTPS_PROXY, NO_PROXY and others).
#ifndef LINNET_IO_HTTP_H_
#define LINNET_IO_HTTP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace linnet {

struct HttpRequest {
  std::string url;
  uint64_t from = 0;         // offset of the first byte to download
  int connect_seconds = 20;  // timeout for connecting
  int stall_seconds = 30;    // gives up if slower than 100 bytes per second for this time
};

// Receives the bytes. An exception thrown here ends the transfer and propagates from HttpGet.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  // Called once before the first byte. The server sends the file from byte `from` on: the requested
  // offset, or 0 if the server does not support ranges. `length` is the number of bytes that
  // follow, or -1 if unknown. Returns false to end the transfer.
  virtual bool Begin(uint64_t from, int64_t length) = 0;
  // Receives the next bytes of the file. Returns false to end the transfer.
  virtual bool Write(std::span<const std::byte> bytes) = 0;
  // Polled about once a second and as data arrive. Returns true to end the transfer.
  virtual bool Stop() = 0;
};

struct HttpResult {
  bool complete = false;       // all bytes announced by the server have arrived
  bool range_refused = false;  // the server refused the offset; try again with from = 0
  std::string error;           // reason of a failure, one line; "" if complete or ended by sink
};

HttpResult HttpGet(const HttpRequest& request, HttpSink& sink);

}  // namespace linnet

#endif  // LINNET_IO_HTTP_H_
