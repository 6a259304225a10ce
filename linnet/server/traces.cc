#include "linnet/server/traces.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "linnet/error.h"
#include "linnet/version.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;

// Numbers of the OpenTelemetry protocol.
constexpr int kInternal = 1, kServer = 2;  // kinds of spans
constexpr int kError = 2;                  // status of a span
constexpr size_t kTraceDigits = 32, kSpanDigits = 16;

// Whether the text is `count` digits, not all of them 0. Trace Context demands lower case.
bool IsId(std::string_view text, size_t count) {
  return text.size() == count && text.find_first_not_of("0123456789abcdef") == text.npos &&
         text.find_first_not_of('0') != text.npos;
}

std::string NewId(size_t digits) { return RandomName("").substr(0, digits); }

ordered_json Attribute(const std::string& name, const std::string& value) {
  return {{"key", name}, {"value", {{"stringValue", value}}}};
}
// In the JSON of protocol buffers, 64-bit numbers are strings.
ordered_json Attribute(const std::string& name, size_t value) {
  return {{"key", name}, {"value", {{"intValue", std::to_string(value)}}}};
}

// The spans of one request. Times are in seconds since its beginning.
class Spans {
 public:
  Spans(std::string trace, const HttpRequest& request)
      : trace_(std::move(trace)),
        begin_(std::chrono::system_clock::now() -
               (std::chrono::steady_clock::now() - request.start)) {}

  // Returns the span's id.
  std::string Add(const std::string& parent, const std::string& name, int kind, double from,
                  double to) {
    ordered_json span = {{"traceId", trace_}, {"spanId", NewId(kSpanDigits)}};
    if (!parent.empty()) span["parentSpanId"] = parent;
    span["name"] = name, span["kind"] = kind;
    span["startTimeUnixNano"] = Nanoseconds(from);
    span["endTimeUnixNano"] = Nanoseconds(std::max(from, to));
    list_.push_back(span);
    return span["spanId"];
  }
  ordered_json& operator[](size_t i) { return list_[i]; }
  ordered_json Take() { return std::move(list_); }

 private:
  std::string Nanoseconds(double seconds) const {
    const auto after = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(seconds));
    const auto at = std::chrono::duration_cast<std::chrono::nanoseconds>(begin_.time_since_epoch());
    return std::to_string((at + after).count());
  }

  const std::string trace_;
  const std::chrono::system_clock::time_point begin_;
  ordered_json list_ = ordered_json::array();
};

// The parts of a request that a model computes. A part that has not begun has no span; one that has
// not ended lasts until `end`.
void AddParts(const Account& account, const std::string& parent, double end, Spans& spans) {
  const double admitted = account.admitted, first = account.first;
  const auto until = [end](double time) { return time < 0 ? end : time; };
  spans.Add(parent, "queue", kInternal, account.received, until(admitted));
  if (admitted < 0) return;
  spans.Add(parent, "prompt", kInternal, admitted, until(first));
  if (first >= 0) spans.Add(parent, "generate", kInternal, first, account.last);
}

}  // namespace

std::optional<TraceParent> ParseTraceParent(std::string_view field) {
  // 00-TRACE-SPAN-FLAGS. Later versions may append further parts.
  constexpr size_t kLength = 2 + 1 + kTraceDigits + 1 + kSpanDigits + 1 + 2;
  if (field.size() < kLength || field[2] != '-' || field[3 + kTraceDigits] != '-' ||
      field[kLength - 3] != '-') {
    return {};
  }
  const std::string_view version = field.substr(0, 2), trace = field.substr(3, kTraceDigits);
  const std::string_view span = field.substr(4 + kTraceDigits, kSpanDigits);
  const std::string_view flags = field.substr(kLength - 2, 2);
  const auto digits = [](std::string_view text) {
    return text.find_first_not_of("0123456789abcdef") == text.npos;
  };
  const bool longer = field.size() > kLength;
  if (!digits(version) || version == "ff" || (longer && version == "00") ||
      (longer && field[kLength] != '-') || !digits(flags) || !IsId(trace, kTraceDigits) ||
      !IsId(span, kSpanDigits)) {
    return {};
  }
  const bool sampled = std::string_view("13579bdf").find(flags[1]) != std::string_view::npos;
  return TraceParent{std::string(trace), std::string(span), sampled};
}

ordered_json MakeTrace(const std::optional<TraceParent>& parent, const HttpRequest& request,
                       const Account* account, int status) {
  Spans spans(parent ? parent->trace : NewId(kTraceDigits), request);
  const double end =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - request.start).count();
  const std::string whole =
      spans.Add(parent ? parent->span : "", "POST " + request.path, kServer, 0, end);
  ordered_json attributes = {
      Attribute("http.request.method", request.method),
      Attribute("url.path", request.path),
      Attribute("http.response.status_code", static_cast<size_t>(status)),
      Attribute("client.address", request.remote),
      Attribute("linnet.request_id", request.id),
  };
  if (account != nullptr) {
    attributes.push_back(Attribute("gen_ai.usage.input_tokens", account->prompt));
    attributes.push_back(Attribute("gen_ai.usage.output_tokens", account->generated));
    attributes.push_back(Attribute("linnet.known_tokens", account->known));
    AddParts(*account, whole, end, spans);
  }
  spans[0]["attributes"] = std::move(attributes);
  // A stream has the status 200, also if it fails later.
  const std::string fault = account == nullptr ? "" : account->fault();
  if (status >= 500 || (status < 400 && !fault.empty())) {
    spans[0]["status"] = {{"code", kError}};
    if (!fault.empty()) spans[0]["status"]["message"] = fault;
  }
  const ordered_json scope = {{"scope", {{"name", "linnet"}, {"version", LINNET_VERSION}}},
                              {"spans", spans.Take()}};
  const ordered_json resource = {
      {"resource", {{"attributes", ordered_json::array({Attribute("service.name", "linnet")})}}},
      {"scopeSpans", ordered_json::array({scope})}};
  return {{"resourceSpans", ordered_json::array({resource})}};
}

TraceFile::TraceFile(const std::string& path, Warn warn) : path_(path), warn_(std::move(warn)) {
  // Without O_NONBLOCK, opening a FIFO would wait for a reader.
  file_ = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
  struct stat status {};
  if (file_ < 0 || fstat(file_, &status) != 0) {
    throw InputError(path, ": cannot be opened for writing: ", std::strerror(errno),
                     "; give another file");
  }
  if (!S_ISREG(status.st_mode)) {
    close(file_);
    throw InputError(path, ": not a regular file; give another one");
  }
}
TraceFile::~TraceFile() { close(file_); }

void TraceFile::Write(const ordered_json& trace) {
  const std::string text = Dump(trace) + "\n";
  std::string fault;
  {
    const std::lock_guard lock(mutex_);
    const std::string line = broken_ ? "\n" + text : text;
    const ssize_t written = write(file_, line.data(), line.size());
    const bool fails = written != static_cast<ssize_t>(line.size());
    if (fails && !failed_) fault = written < 0 ? std::strerror(errno) : "no space is left";
    failed_ = fails;
    if (written > 0) broken_ = fails;
  }
  if (!fault.empty() && warn_) warn_(StrCat(path_, ": a trace is lost: ", fault));
}

}  // namespace linnet::server
