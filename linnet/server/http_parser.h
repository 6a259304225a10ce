// Beast's parser for one request, and the rules that it lacks. Only http_server.cc includes this
// file: Beast takes long to compile.
#ifndef LINNET_SERVER_HTTP_PARSER_H_
#define LINNET_SERVER_HTTP_PARSER_H_

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <charconv>
#include <string>
#include <string_view>

#include "linnet/server/http_server.h"

namespace linnet::server {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using Code = boost::system::error_code;

// The reason for refusing a request.
struct Fault {
  int status = 0;  // 0: the request is not refused
  std::string message = {};
};

inline std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

// Case-insensitive comparison, for the names of fields, schemes and codings.
inline bool Same(std::string_view a, std::string_view b) {
  return beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

// The path of a request's target, decoded. An incomplete or invalid escape stays as it is.
inline std::string PathOf(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (Same(target.substr(0, kScheme.size()), kScheme)) {
    target.remove_prefix(std::min(target.find_first_of("/?#", kScheme.size()), target.size()));
    if (!target.starts_with('/')) target = "/";
  }
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (size_t i = 0; i < target.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = target.data() + i + 1;
    if (target[i] == '%' && target.size() - i > 2 &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      path += static_cast<char>(byte);
      i += 2;
    } else {
      path += target[i];
    }
  }
  return path;
}

// Parses into an HttpRequest.
class Parser : public http::basic_parser<true> {
 public:
  explicit Parser(HttpRequest& request) : request_(request) {}

  bool discards = false;                    // whether to discard the body
  int version() const { return version_; }  // 10 or 11

 private:
  void on_request_impl(http::verb, beast::string_view method, beast::string_view target,
                       int version, Code&) override {
    request_.method = View(method);
    request_.path = PathOf(View(target));
    version_ = version;
  }
  void on_response_impl(int, beast::string_view, int, Code&) override {}
  void on_field_impl(http::field, beast::string_view name, beast::string_view value,
                     Code&) override {
    if (!trailer_) request_.fields.emplace_back(View(name), View(value));
  }
  void on_header_impl(Code&) override { trailer_ = true; }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, Code&) override {}
  size_t on_body_impl(beast::string_view body, Code&) override {
    if (!discards) request_.body.append(body.data(), body.size());
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, beast::string_view, Code&) override {}
  size_t on_chunk_body_impl(std::uint64_t, beast::string_view body, Code& code) override {
    return on_body_impl(body, code);
  }
  void on_finish_impl(Code&) override {}

  HttpRequest& request_;
  int version_ = 11;
  bool trailer_ = false;  // fields that follow belong to the trailer, which is ignored
};

// Checks a header byte by byte while it arrives: its limits, control characters and line ends.
// Beast would accept a field that continues on the next line. It would report the other faults, but
// only once the whole header has arrived.
class HeaderScan {
 public:
  size_t position() const { return at_; }  // bytes checked
  // `header`: the bytes received so far. `whole`: they end with the empty line after the header.
  Fault Check(std::string_view header, bool whole, const HttpOptions& options) {
    for (; at_ < header.size(); ++at_) {
      const auto c = static_cast<unsigned char>(header[at_]);
      const char before = at_ > 0 ? header[at_ - 1] : 0;
      if (lines_ == 0 && at_ >= options.request_line) {
        return {414, "the request's address is too long"};
      }
      if (at_ >= options.header) return {431, "the request's header is too large"};
      if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7f) {
        return {400, "the request's header has a control character"};
      }
      if ((c == '\n' && before != '\r') || ((c == ' ' || c == '\t') && before == '\n')) {
        return {400,
                "the request's header has a line that does not end with CR LF, or that continues "
                "the line before it"};
      }
      lines_ += c == '\n';
    }
    const size_t others = whole ? 2 : 1;  // lines without a field: the request line, the empty line
    if (lines_ > options.fields + others) return {431, "the request has too many header fields"};
    return {};
  }

 private:
  size_t at_ = 0, lines_ = 0;  // bytes and line ends checked
};

// Checks a parsed header for faults that Beast accepts, such as two equal values of Content-Length
// (in two fields or in a list) and unknown transfer codings. If a proxy and this server read such a
// request differently, they disagree on where the next request begins (request smuggling).
inline Fault FaultOf(const HttpRequest& request, int version) {
  const auto count = [&](std::string_view name) {
    return std::count_if(request.fields.begin(), request.fields.end(),
                         [&](const auto& field) { return Same(field.first, name); });
  };
  const std::string_view length = request.Field("Content-Length"),
                         coding = request.Field("Transfer-Encoding"),
                         expect = request.Field("Expect");
  if (count("Content-Length") > 1 || length.find_first_not_of("0123456789") != length.npos) {
    return {400, "the request's Content-Length must be a single number"};
  }
  const auto codings = count("Transfer-Encoding");
  if (codings > 1 || (codings == 1 && (!Same(coding, "chunked") || version < 11))) {
    return {400, "the request's Transfer-Encoding is not 'chunked', or its version is HTTP/1.0"};
  }
  const auto hosts = count("Host");
  if (hosts > 1 || (hosts == 0 && version >= 11)) {
    return {400, "the request has no Host, or several"};
  }
  if (!expect.empty() && !Same(expect, "100-continue")) {
    return {417, "the request expects something other than 100-continue"};
  }
  return {};
}

}  // namespace
}  // namespace linnet::server

#endif  // LINNET_SERVER_HTTP_PARSER_H_
