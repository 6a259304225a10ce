// The thread sanitizer ignores memory fences, so it would report false races in Asio. With this
// macro, Asio uses no fences: its mutexes order all accesses.
#ifdef __SANITIZE_THREAD__
#define BOOST_ASIO_DISABLE_FENCED_BLOCK
#endif

#include "linnet/server/http_server.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/http/status.hpp>
#include <cctype>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_set>

#include "linnet/error.h"
#include "linnet/server/http_parser.h"

namespace linnet::server {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Strand = asio::strand<asio::io_context::executor_type>;
using Socket = asio::basic_stream_socket<tcp, Strand>;
using Acceptor = asio::basic_socket_acceptor<tcp, Strand>;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, Strand>;

// HttpRequest::id: the client's, if it is a valid one.
std::string IdOf(const HttpRequest& request) {
  constexpr size_t kLongest = 64;
  const std::string_view given = request.Field("X-Request-Id");
  const bool valid = !given.empty() && given.size() <= kLongest &&
                     std::all_of(given.begin(), given.end(), [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
                     });
  if (valid) return std::string(given);
  static const auto process = static_cast<unsigned>(std::random_device()());
  static std::atomic<uint64_t> count{0};
  char id[32];
  std::snprintf(id, sizeof(id), "%08x-%06llx", process, static_cast<unsigned long long>(++count));
  return id;
}

// Time for which the server still reads (and discards) data before it closes a connection. Closing
// a socket with unread data resets the connection, and the client may lose the response.
constexpr std::chrono::seconds kLinger(5);
constexpr size_t kRead = 1 << 16;  // bytes read at once
constexpr int kRounds = 64;        // calls of Parse() in a row before other connections' turn

class Connection;
class Request;

}  // namespace

std::string_view HttpRequest::Field(std::string_view name) const {
  for (const auto& [field, value] : fields) {
    if (Same(field, name)) return value;
  }
  return {};
}

struct HttpServer::Impl {
  Impl(HttpHandler& of, HttpOptions how) : handler(of), options(std::move(how)) {}

  bool Listen(const tcp::endpoint& endpoint);
  void Accept();
  void Open(Socket socket);
  void StartTicking();
  void Tick();
  void Closed(const std::shared_ptr<Connection>& connection);

  HttpHandler& handler;
  const HttpOptions options;
  asio::io_context context;
  const Strand strand = asio::make_strand(context);  // serializes the four members below
  Acceptor acceptor{strand};
  Timer timer{strand};
  bool accepting = false, ticking = false;

  std::atomic<size_t> active{0};
  mutable std::mutex mutex;  // guards `open`
  std::unordered_set<std::shared_ptr<Connection>> open;
};

namespace {

// A connection reads a request, lets the handler answer it, writes the answer, and goes on to the
// next request, all on one strand. It waits for its socket to be ready before it reads or
// writes, so an idle connection has no buffer.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, Socket socket)
      : server_(server), options_(server.options), socket_(std::move(socket)) {}

  Strand strand() { return socket_.get_executor(); }
  Clock::time_point deadline() const { return Clock::time_point(Clock::duration(deadline_)); }

  // Called on the strand, like everything below.
  void Start();
  void OnDeadline();
  void Close();
  // Called by Request.
  bool Is(const Request& request) const { return current_.get() == &request; }
  void Answer(HttpResponse response);
  void Stream(const HttpResponse& response, std::function<Exchange::Next(std::string&)> next);
  void Write();

 private:
  enum class State : uint8_t { kIdle, kHeader, kBody, kAnswer, kLinger, kClosed };

  void Read();
  void OnReadable();
  void OnEnd();
  void Process();
  bool Parse();
  bool ParseHeader();
  bool BeginBody();
  bool ParseBody();
  void Handle();
  bool Refuse(int status, const std::string& message);
  bool RefuseLargeBody() {
    return Refuse(413, StrCat("the body is larger than ", options_.body, " bytes"));
  }
  // length: of the body; none if it comes in pieces.
  void WriteHead(const HttpResponse& response, std::optional<size_t> length);
  bool TakePiece();
  void Complete();
  void Finish(bool left);
  void SetDeadline(std::chrono::nanoseconds from_now) {
    deadline_ = (Clock::now() + from_now).time_since_epoch().count();
  }
  void NoDeadline() { deadline_ = kNever; }

  static constexpr Clock::rep kNever = Clock::time_point::max().time_since_epoch().count();

  HttpServer::Impl& server_;
  const HttpOptions& options_;
  Socket socket_;
  State state_ = State::kIdle;
  std::atomic<Clock::rep> deadline_{kNever};
  bool waits_to_read_ = false, waits_to_write_ = false, processing_ = false;
  bool ended_ = false;  // the client has shut down its sending side
  std::string remote_;
  std::string in_;  // received, not parsed yet
  HeaderScan scan_;
  std::string head_, body_;                  // to be written, one after the other,
  std::shared_ptr<const std::string> file_;  // and then this; may be null
  size_t sent_ = 0;                          // bytes of all that are written

  // The state of the current request.
  std::shared_ptr<Request> current_;
  std::unique_ptr<Parser> parser_;
  std::optional<HttpResponse> checked_;  // the answer of the handler's Check()
  std::function<Exchange::Next(std::string&)> next_;
  int status_ = 0;
  // active_: the request counts in server_.active. answering_: Answer() or Stream() was called.
  // close_: the connection will be closed after the response.
  bool active_ = false, answering_ = false, close_ = false;
};

// The Exchange of one request: passes its calls on to the connection, on the connection's strand.
class Request : public Exchange, public std::enable_shared_from_this<Request> {
 public:
  explicit Request(std::weak_ptr<Connection> connection) : connection_(std::move(connection)) {}

  const HttpRequest& request() const override { return request_; }
  HttpRequest& request() { return request_; }
  std::string TakeBody() override { return std::move(request_.body); }

  void Answer(HttpResponse response) override {
    Do([response = std::move(response)](Connection& connection) mutable {
      connection.Answer(std::move(response));
    });
  }
  void Stream(HttpResponse response, std::function<Next(std::string&)> next) override {
    Do([response = std::move(response), next = std::move(next)](Connection& connection) mutable {
      connection.Stream(response, std::move(next));
    });
  }
  void Wake() override {
    if (woken_.exchange(true)) return;
    Post([](Request& self, Connection& connection) {
      self.woken_ = false;
      connection.Write();
    });
  }
  void Abort() override {
    Post([](Request&, Connection& connection) { connection.Close(); });
  }

 private:
  // Calls `function` on the connection's strand, at once if this thread runs the strand. Does
  // nothing if the connection has closed or this is not its current request.
  template <class Function>
  void Do(Function function) {
    const auto connection = connection_.lock();
    if (!connection) return;
    asio::dispatch(connection->strand(), [connection, self = shared_from_this(),
                                          function = std::move(function)]() mutable {
      if (connection->Is(*self)) function(*connection);
    });
  }
  // Like Do(), but always queues the call, even if this thread runs the strand.
  template <class Function>
  void Post(Function function) {
    const auto connection = connection_.lock();
    if (!connection) return;
    asio::post(connection->strand(), [connection, self = shared_from_this(), function] {
      if (connection->Is(*self)) function(*self, *connection);
    });
  }

  const std::weak_ptr<Connection> connection_;
  HttpRequest request_;
  std::atomic<bool> woken_{false};  // a call of Write() is queued
};

void Connection::Start() {
  Code code;
  const tcp::endpoint remote = socket_.remote_endpoint(code);
  if (!code) remote_ = remote.address().to_string();
  if (!code) socket_.non_blocking(true, code);
  if (!code) socket_.set_option(tcp::no_delay(true), code);
  if (code) return Close();
  SetDeadline(options_.idle_time);
  Read();
}

// Waits for data, also while a request is being answered, to notice if the client leaves.
void Connection::Read() {
  if (waits_to_read_ || state_ == State::kClosed) return;
  if (ended_) {
    if (state_ != State::kAnswer) Close();
    return;
  }
  if (state_ == State::kAnswer && in_.size() >= options_.header) {
    // Pauses reading: enough of the next requests has been read. Meanwhile OnDeadline() checks
    // whether the client has left.
    if (!waits_to_write_) SetDeadline(HttpServer::kTick);
    return;
  }
  waits_to_read_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](Code code) {
    self->waits_to_read_ = false;
    if (!code) self->OnReadable();
  });
}

void Connection::OnReadable() {
  if (state_ == State::kClosed) return;
  static thread_local std::array<char, kRead> block;
  Code code;
  const size_t size = socket_.read_some(asio::buffer(block), code);
  if (code && code != asio::error::would_block) return OnEnd();
  if (state_ != State::kLinger) in_.append(block.data(), size);
  Process();
}

void Connection::OnEnd() {
  ended_ = true;
  // After a client has shut down its sending side, it still gets a response that is complete; one
  // that is still being computed or streamed is dropped.
  if (state_ == State::kAnswer && (!answering_ || next_)) return Close();
  Process();
}

void Connection::OnDeadline() {
  if (state_ == State::kClosed || Clock::now() < deadline()) return;
  if (state_ == State::kHeader) {
    Refuse(408, "the request's header did not arrive in time");
  } else if (state_ == State::kBody) {
    Refuse(408, "the request's body did not arrive in time");
  } else if (state_ == State::kAnswer && !waits_to_write_) {
    pollfd asked{socket_.native_handle(), POLLRDHUP, 0};
    if (poll(&asked, 1, 0) > 0) return Close();
    SetDeadline(HttpServer::kTick);
  } else {
    Close();
  }
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  NoDeadline();
  Code ignored;
  socket_.close(ignored);
  if (current_) Finish(/*left=*/true);
  server_.Closed(shared_from_this());
}

void Connection::Process() {
  if (processing_) return;  // Parse() below may lead to Complete(), which calls Process()
  processing_ = true;
  bool more = true;
  try {
    for (int round = 0; more && round < kRounds; ++round) more = Parse();
  } catch (const std::exception&) {  // out of memory
    processing_ = false;
    return Close();
  }
  processing_ = false;
  if (more) {
    asio::post(strand(), [self = shared_from_this()] { self->Process(); });
  } else {
    Read();
  }
}

// Number of bytes of empty lines at the beginning. Some clients send an empty line after a body.
size_t EmptyLines(std::string_view text) {
  size_t size = 0;
  while (text.substr(size, 2) == "\r\n") size += 2;
  return size;
}

// Returns whether there is more to parse.
bool Connection::Parse() {
  switch (state_) {
    case State::kIdle:
      in_.erase(0, EmptyLines(in_));
      if (in_.empty()) {
        in_ = {};  // frees the memory
        return false;
      }
      if (in_ == "\r") return false;  // perhaps the first half of an empty line
      state_ = State::kHeader;
      scan_ = {};
      SetDeadline(options_.header_time);
      return true;
    case State::kHeader:
      return ParseHeader();
    case State::kBody:
      return ParseBody();
    default:
      return false;
  }
}

bool Connection::ParseHeader() {
  constexpr std::string_view kEnd = "\r\n\r\n";
  const size_t found = in_.find(kEnd, scan_.position() - std::min(scan_.position(), kEnd.size()));
  const bool whole = found != in_.npos;
  const size_t size = whole ? found + kEnd.size() : in_.size();
  const Fault fault = scan_.Check(std::string_view(in_).substr(0, size), whole, options_);
  if (fault.status != 0) return Refuse(fault.status, fault.message);
  if (!whole) return false;
  current_ = std::make_shared<Request>(weak_from_this());
  HttpRequest& request = current_->request();
  request.remote = remote_, request.start = Clock::now();
  parser_ = std::make_unique<Parser>(request);
  parser_->header_limit(static_cast<std::uint32_t>(size));
  parser_->body_limit(options_.body);
  parser_->eager(false);
  Code code;
  parser_->put(asio::const_buffer(in_.data(), size), code);
  in_.erase(0, size);
  request.id = IdOf(request);
  if (code == http::error::body_limit) return RefuseLargeBody();
  if (code || !parser_->is_header_done()) {
    return Refuse(400, "the request is not HTTP that this server supports");
  }
  const Fault framing = FaultOf(request, parser_->version());
  if (framing.status != 0) return Refuse(framing.status, framing.message);
  return BeginBody();
}

bool Connection::BeginBody() {
  HttpRequest& request = current_->request();
  checked_ = server_.handler.Check(request);
  parser_->discards = checked_.has_value();
  close_ = !parser_->keep_alive();
  state_ = State::kBody;
  SetDeadline(options_.body_time);
  if (!parser_->is_done() && in_.empty() && parser_->version() >= 11 &&
      !request.Field("Expect").empty()) {
    if (checked_) {  // the client need not send the body
      close_ = true;
      Handle();
      return true;
    }
    Code ignored;
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    socket_.write_some(asio::buffer(kContinue), ignored);
  }
  return true;
}

bool Connection::ParseBody() {
  // The shortest rest of a chunked body is "0\r\n\r\n". Beast needs these 5 bytes in one piece.
  const size_t least = parser_->chunked() ? 5 : 1;
  size_t taken = 0;
  Code code;
  while (!code && !parser_->is_done() && in_.size() - taken >= least) {
    taken += parser_->put(asio::const_buffer(in_.data() + taken, in_.size() - taken), code);
  }
  in_.erase(0, taken);
  if (code == http::error::body_limit) return RefuseLargeBody();
  if (code && code != http::error::need_more) {
    return Refuse(400, "the request's body is malformed");
  }
  if (parser_->is_done()) {
    Handle();
    return true;
  }
  // Only an incomplete chunk header or trailer can leave so many bytes.
  if (in_.size() > options_.header) return Refuse(400, "the request's body is malformed");
  return false;
}

void Connection::Handle() {
  state_ = State::kAnswer;
  NoDeadline();
  active_ = true;
  ++server_.active;
  if (checked_) {
    Answer(std::move(*checked_));
  } else {
    server_.handler.Handle(current_);
  }
}

// Answers a request that the transport refuses, then closes the connection. Returns false.
bool Connection::Refuse(int status, const std::string& message) {
  if (!current_) {
    current_ = std::make_shared<Request>(weak_from_this());
    current_->request().remote = remote_, current_->request().start = Clock::now();
    current_->request().id = IdOf(current_->request());
  }
  state_ = State::kAnswer;
  NoDeadline();
  active_ = close_ = true;
  ++server_.active;
  Answer(server_.handler.Refuse(status, message));
  return false;
}

void Connection::WriteHead(const HttpResponse& response, std::optional<size_t> length) {
  const bool old = parser_ && parser_->version() < 11;  // HTTP/1.0
  if (old && !length) close_ = true;  // in HTTP/1.0, closing the connection ends the body
  status_ = response.status;
  head_ = StrCat("HTTP/1.1 ", status_, " ",
                 View(http::obsolete_reason(static_cast<http::status>(status_))), "\r\n");
  if (!response.type.empty()) head_ += StrCat("Content-Type: ", response.type, "\r\n");
  head_ += StrCat("X-Request-Id: ", current_->request().id, "\r\n");
  // With status 304, the length would be that of the file that the client has already.
  if (length && status_ != 304) head_ += StrCat("Content-Length: ", *length, "\r\n");
  if (!length && !old) head_ += "Transfer-Encoding: chunked\r\n";
  if (close_) {
    head_ += "Connection: close\r\n";
  } else if (old) {
    head_ += "Connection: keep-alive\r\n";
  }
  for (const auto& [name, value] : response.fields) head_ += StrCat(name, ": ", value, "\r\n");
  head_ += "\r\n";
}

void Connection::Answer(HttpResponse response) {
  if (answering_) return;
  answering_ = true;
  WriteHead(response, response.file ? response.file->size() : response.body.size());
  if (current_->request().method != "HEAD") {
    body_ = std::move(response.body);
    file_ = std::move(response.file);
  }
  Write();
}

void Connection::Stream(const HttpResponse& response,
                        std::function<Exchange::Next(std::string&)> next) {
  if (answering_) return;
  answering_ = true;
  WriteHead(response, {});
  if (current_->request().method != "HEAD") next_ = std::move(next);
  Write();
}

// Writes all available bytes, or as many of them as the socket takes.
void Connection::Write() {
  if (!answering_ || waits_to_write_) return;
  do {
    const asio::const_buffer file = file_ ? asio::buffer(*file_) : asio::const_buffer();
    while (sent_ < head_.size() + body_.size() + file.size()) {
      const size_t of_head = std::min(sent_, head_.size()),
                   of_body = std::min(sent_ - of_head, body_.size());
      const std::array<asio::const_buffer, 3> rest = {asio::buffer(head_) + of_head,
                                                      asio::buffer(body_) + of_body,
                                                      file + (sent_ - of_head - of_body)};
      Code code;
      sent_ += socket_.write_some(rest, code);
      if (code == asio::error::would_block) {
        waits_to_write_ = true;
        SetDeadline(options_.write_time);
        socket_.async_wait(Socket::wait_write, [self = shared_from_this()](Code failed) {
          self->waits_to_write_ = false;
          if (!failed) self->Write();
        });
        return;
      }
      if (code) return Close();
    }
    head_.clear(), body_.clear(), file_.reset();
    sent_ = 0;
    NoDeadline();
    if (!next_) return Complete();
  } while (TakePiece());
  Read();  // sets the deadline again if reading is paused
}

// Takes the stream's next piece or its end, for Write(). Returns false if neither is available yet.
bool Connection::TakePiece() {
  std::string piece;
  const Exchange::Next got = next_(piece);
  if (got == Exchange::Next::kNothing) return false;
  const bool chunked = parser_->version() >= 11;
  if (got == Exchange::Next::kEnd) {
    next_ = nullptr;
    if (chunked) head_ = "0\r\n\r\n";
  } else if (!piece.empty()) {
    char size[20];
    if (chunked) {
      head_.assign(size, std::to_chars(size, size + sizeof(size), piece.size(), 16).ptr) += "\r\n";
    }
    body_ = std::move(piece);
    if (chunked) body_ += "\r\n";
  }
  return true;
}

void Connection::Complete() {
  const bool close = close_;
  Finish(/*left=*/false);
  if (close) {
    state_ = State::kLinger;
    in_ = {};
    Code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    SetDeadline(kLinger);
  } else {
    state_ = State::kIdle;
    SetDeadline(options_.idle_time);
  }
  Process();
}

void Connection::Finish(bool left) {
  const auto request = std::exchange(current_, nullptr);
  parser_.reset(), checked_.reset();
  next_ = nullptr;
  head_ = {}, body_ = {}, file_.reset();
  sent_ = 0;
  answering_ = close_ = false;
  server_.handler.Finished(request->request(), std::exchange(status_, 0), left);
  if (std::exchange(active_, false)) --server_.active;
}

}  // namespace

bool HttpServer::Impl::Listen(const tcp::endpoint& endpoint) {
  Code code, ignored;
  acceptor.close(ignored);
  acceptor.open(endpoint.protocol(), code);
  if (!code) acceptor.set_option(Acceptor::reuse_address(true), code);
  if (!code && endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false), ignored);
  if (!code) acceptor.bind(endpoint, code);
  if (!code) acceptor.listen(Acceptor::max_listen_connections, code);
  return !code;
}

void HttpServer::Impl::Accept() {
  {
    const std::lock_guard lock(mutex);
    if (accepting || open.size() >= options.connections) return;
  }
  accepting = true;
  acceptor.async_accept(asio::make_strand(context), [this](Code code, Socket socket) {
    accepting = false;
    StartTicking();
    // Continues after an aborted connection. After any other error, such as no free descriptors,
    // Tick() tries again.
    if (code && code != asio::error::connection_aborted) return;
    if (!code) Open(std::move(socket));
    Accept();
  });
}

void HttpServer::Impl::Open(Socket socket) {
  const auto connection = std::make_shared<Connection>(*this, std::move(socket));
  {
    const std::lock_guard lock(mutex);
    open.insert(connection);
  }
  asio::post(connection->strand(), [connection] { connection->Start(); });
}

void HttpServer::Impl::Closed(const std::shared_ptr<Connection>& connection) {
  {
    const std::lock_guard lock(mutex);
    open.erase(connection);
  }
  asio::post(strand, [this] { Accept(); });
}

void HttpServer::Impl::StartTicking() {
  if (std::exchange(ticking, true)) return;
  timer.expires_after(kTick);
  timer.async_wait([this](Code code) {
    ticking = false;
    if (!code) Tick();
  });
}

void HttpServer::Impl::Tick() {
  handler.Tick();
  Accept();
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex);
  for (const auto& connection : open) {
    if (connection->deadline() > now) continue;
    asio::post(connection->strand(), [connection] { connection->OnDeadline(); });
  }
  if (!open.empty() || !accepting) StartTicking();
}

HttpServer::HttpServer(HttpHandler& handler, HttpOptions options)
    : impl_(std::make_unique<Impl>(handler, std::move(options))) {}

HttpServer::~HttpServer() = default;

int HttpServer::Bind() {
  Impl& impl = *impl_;
  const HttpOptions& options = impl.options;
  Code code;
  for (const auto& found :
       tcp::resolver(impl.context)
           .resolve(options.host, std::to_string(options.port), tcp::resolver::passive, code)) {
    if (!impl.Listen(found.endpoint())) continue;
    const int port = impl.acceptor.local_endpoint(code).port();
    if (!code) return port;
  }
  throw InputError(
      "cannot listen on ", options.host, " port ", options.port,
      ": the port is in use, or --host is not an address of this machine; choose another --port "
      "(0: any free port)");
}

void HttpServer::Run() {
  Impl& impl = *impl_;
  const auto work = asio::make_work_guard(impl.context);
  asio::post(impl.strand, [&impl] { impl.Accept(); });
  const auto serve = [&impl] {
    while (!impl.context.stopped()) {
      try {
        impl.context.run();
      } catch (const std::exception&) {  // out of memory: fails the request that needed it
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < impl.options.threads; ++i) threads.emplace_back(serve);
  serve();
  for (std::thread& thread : threads) thread.join();
  for (const auto& connection : std::unordered_set(impl.open)) connection->Close();
}

void HttpServer::Stop() { impl_->context.stop(); }

size_t HttpServer::connections() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->open.size();
}

size_t HttpServer::active() const { return impl_->active; }

}  // namespace linnet::server
