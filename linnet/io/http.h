// One file over http or https, whole or from a byte on.
//
//   const HttpResult got = HttpGet({.url = "https://host/a.gz", .from = 1000}, sink);
//   if (!got.complete) std::cerr << got.error;         // "HTTP status 404", "Could not resolve ..."
//
// Redirects are followed, to http and https only; proxies are those of the environment.
#ifndef LINNET_IO_HTTP_H_
#define LINNET_IO_HTTP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace linnet {

struct HttpRequest {
  std::string url;
  uint64_t from = 0;         // the first byte wanted
  int connect_seconds = 20;  // until the server must have answered the call
  int stall_seconds = 30;    // without bytes worth mentioning, until the transfer fails
};

// Where the bytes go. What these throw ends the transfer and leaves HttpGet.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  // Called once, before the first byte: the server sends the file from byte `from` on, which is 0
  // where it knows no ranges, else what was asked for; `length` bytes of it, or -1 if it does not
  // say. False ends the transfer.
  virtual bool Begin(uint64_t from, int64_t length) = 0;
  // False ends the transfer.
  virtual bool Write(std::span<const std::byte> bytes) = 0;
  // Asked about once a second and with each block; true ends the transfer.
  virtual bool Stop() = 0;
};

struct HttpResult {
  bool complete = false;       // everything that the server announced has arrived
  bool range_refused = false;  // the file cannot be had from `from` on; perhaps it can be whole
  std::string error;           // why it failed, in one line; "" if the sink ended it
};

HttpResult HttpGet(const HttpRequest& request, HttpSink& sink);

}  // namespace linnet

#endif  // LINNET_IO_HTTP_H_
