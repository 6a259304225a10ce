// The transport under the server: HTTP/1.1 over TCP, with limits and deadlines for everything that
// a client controls. It knows nothing of models (decision 042).
//
//   struct Hello : HttpHandler {
//     void Handle(std::shared_ptr<Exchange> exchange) override {
//       exchange->Answer({.type = "text/plain", .body = "hello\n"});
//     }
//     ...
//   } hello;
//   HttpServer server(hello, {.port = 8080});
//   const int port = server.Bind();       // accepts connections from here on
//   server.Run();                         // until another thread calls Stop()
//
// A few threads serve all connections; no thread ever waits for a client. The requests of a
// connection are answered one after the other, in their order. A request that is malformed,
// ambiguous or beyond a limit is refused at once, and its connection is closed.
#ifndef LINNET_SERVER_HTTP_SERVER_H_
#define LINNET_SERVER_HTTP_SERVER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace linnet::server {

using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;   // without the query, decoded
  HttpFields fields;  // in the order received
  std::string body;
  std::string remote;  // the client's address
  // The client's X-Request-Id if it is 1 to 64 letters, digits, '.', '_' and '-'; otherwise a new
  // id, unique among the servers' processes. The response repeats it in X-Request-Id.
  std::string id;
  std::chrono::steady_clock::time_point start;  // when the header was complete
  std::shared_ptr<const void> sender;           // for the handler, which may set it in Check()

  // The value of the first field with this name (case-insensitive); "" if there is none.
  std::string_view Field(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string type;  // Content-Type
  // Further fields; the server adds Content-Length, Connection and X-Request-Id.
  HttpFields fields = {};
  std::string body = {};
  std::shared_ptr<const std::string> file = {};  // if not null, the body: one copy for all clients
};

// A request that waits for its answer. Thread-safe. Calls have no effect once the answer is
// complete or the client has left.
class Exchange {
 public:
  // The result of `next` in Stream(): a piece, no piece yet, or the end of the body.
  enum class Next { kPiece, kNothing, kEnd };

  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  // Takes the request's body, which may be large, out of the request.
  virtual std::string TakeBody() = 0;
  // Answers with a whole response.
  virtual void Answer(HttpResponse response) = 0;
  // Answers with a body in pieces; response.body is ignored. When the client can take more, `next`
  // is called on a thread of the server, never concurrently. Once `next` has returned kNothing, it
  // is called again only after Wake().
  virtual void Stream(HttpResponse response, std::function<Next(std::string& piece)> next) = 0;
  virtual void Wake() = 0;
  // Closes the connection; the client counts as gone.
  virtual void Abort() = 0;
};

// Handles the server's requests. Called on any thread of the server; must not wait or throw.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called when the header has arrived. If this returns a response, the client gets it, the body is
  // discarded, and Handle() is not called.
  virtual std::optional<HttpResponse> Check(HttpRequest& request) = 0;
  // Answers the request, now or later on any thread.
  virtual void Handle(std::shared_ptr<Exchange> exchange) = 0;
  // The response to a request that the transport refuses.
  virtual HttpResponse Refuse(int status, const std::string& message) = 0;
  // The last call for each request, also for a request that Handle() has not seen. `left`: the
  // client disconnected before the response was complete. `request` may lack parts that were not
  // read.
  virtual void Finished(const HttpRequest& request, int status, bool left) = 0;
  // Called every HttpServer::kTick while there are connections.
  virtual void Tick() = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: any free port
  size_t threads = 4;
  size_t connections = 2048;  // maximum number of open connections; further ones wait
  // Limits of a request, in bytes except for `fields`. A request beyond a limit gets status 414
  // (request_line), 431 (header, fields) or 413 (body).
  size_t request_line = 8 << 10;
  size_t header = 32 << 10;  // includes the request line
  size_t fields = 100;       // number of header fields
  size_t body = 1 << 20;
  // A request gets status 408 if its header takes longer than header_time, or its body longer than
  // body_time. A connection is closed if it is idle for idle_time, or if its client reads nothing
  // of a response for write_time.
  std::chrono::milliseconds header_time = std::chrono::seconds(10);
  std::chrono::milliseconds body_time = std::chrono::seconds(30);
  std::chrono::milliseconds idle_time = std::chrono::seconds(60);
  std::chrono::milliseconds write_time = std::chrono::seconds(30);
};

class HttpServer {
 public:
  // The interval of HttpHandler::Tick() and of the check of deadlines.
  static constexpr std::chrono::milliseconds kTick{50};

  // The handler must outlive the server.
  HttpServer(HttpHandler& handler, HttpOptions options);
  ~HttpServer();

  // Listens, and returns the port. Throws InputError on failure.
  int Bind();
  // Serves on this thread and options.threads - 1 others, until Stop().
  void Run();
  // Thread-safe. Closes all connections and ends Run().
  void Stop();

  // Thread-safe. The number of open connections, and the number of requests being answered.
  size_t connections() const;
  size_t active() const;

  struct Impl;  // in http_server.cc

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_HTTP_SERVER_H_
