// Downloads one file over http or https, whole or from a byte offset on.
//
//   const HttpResult got = HttpGet({.url = "https://host/a.gz", .from = 1000}, sink);
//   if (!got.complete) std::cerr << got.error;      // "HTTP status 404", "Could not resolve ..."
//
// Follows redirects to http and https only; uses the proxies that the environment
// variables name.
#ifndef LINNET_IO_HTTP_H_
#define LINNET_IO_HTTP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace linnet {

struct HttpRequest {
  std::string url;
  uint64_t from = 0;         // offset of the first byte wanted
  int connect_seconds = 20;  // timeout for the connection
  int stall_seconds = 30;    // timeout at less than 100 bytes per second
};

// Receives the bytes. An exception thrown here ends the transfer and propagates from HttpGet.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  // Called once before the first byte. The server sends the file from byte `from` on: the requested
  // offset, or 0 if the server does not support ranges. `length` is the number of bytes that
  // follow, or -1 if unknown. Returning false ends the transfer.
  virtual bool Begin(uint64_t from, int64_t length) = 0;
  // False ends the transfer.
  virtual bool Write(std::span<const std::byte> bytes) = 0;
  // Polled about once a second and with each block; true ends the transfer.
  virtual bool Stop() = 0;
};

struct HttpResult {
  bool complete = false;       // all bytes announced by the server have arrived
  bool range_refused = false;  // the server refused this offset; the whole file may work
  std::string error;           // a failure's reason, in one line; "" if the sink ended the transfer
};

HttpResult HttpGet(const HttpRequest& request, HttpSink& sink);

}  // namespace linnet

#endif  // LINNET_IO_HTTP_H_
