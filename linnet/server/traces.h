// Traces of requests: one line of OpenTelemetry's JSON (OTLP) for each, in a file that the
// otlpjsonfile receiver of its collector reads.
//
//   TraceFile traces("traces.jsonl", warn);
//   traces.Write(MakeTrace(ParseTraceParent(request.Field("traceparent")), request, account, 200));
#ifndef LINNET_SERVER_TRACES_H_
#define LINNET_SERVER_TRACES_H_

#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "linnet/server/http_server.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {

// The caller's part of a trace, from the header field `traceparent` (W3C Trace Context).
struct TraceParent {
  std::string trace, span;  // ids, in hexadecimal digits
  bool sampled = false;     // the caller records the trace
};

// nullopt: the field is missing or invalid.
std::optional<TraceParent> ParseTraceParent(std::string_view field);

// The spans of a request that has just ended: the whole request and, if it has an account, its time
// in the queue, its prompt and its tokens. Without a parent, they are a trace of their own.
nlohmann::ordered_json MakeTrace(const std::optional<TraceParent>& parent,
                                 const HttpRequest& request, const Account* account, int status);

class TraceFile {
 public:
  using Warn = std::function<void(const std::string& line)>;

  // Appends to the file. warn: called when writes begin to fail; may be empty. Throws InputError if
  // the file cannot be opened for writing.
  TraceFile(const std::string& path, Warn warn);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Thread-safe.
  void Write(const nlohmann::ordered_json& trace);

 private:
  const std::string path_;
  const Warn warn_;
  int file_ = -1;
  std::mutex mutex_;
  bool failed_ = false;  // the last write failed
  bool broken_ = false;  // the file's last line lacks its end
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_TRACES_H_
