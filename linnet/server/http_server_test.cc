// The transport alone, over sockets that send bytes as they are.
#include "linnet/server/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "linnet/error.h"

namespace linnet::server {
namespace {

using std::chrono::milliseconds;
constexpr std::chrono::seconds kPatience(60);  // a test that waits longer fails

// A client that sends and reads raw bytes. A call that waits longer than kPatience fails.
class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{kPatience.count(), 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    const int yes = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));  // pieces travel as they are sent
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { Close(); }
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void ShutDown() { shutdown(fd_, SHUT_WR); }
  // False once the server has closed the connection.
  bool Send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Reads up to and including the first `end`; returns less if the server closes before that.
  std::string ReadTo(std::string_view end) {
    size_t found = 0;
    while ((found = read_.find(end)) == read_.npos) {
      if (!More()) return std::exchange(read_, {});
    }
    const std::string text = read_.substr(0, found + end.size());
    read_.erase(0, text.size());
    return text;
  }
  // Reads until the server closes the connection; fails the test if it does not.
  std::string ReadAll() {
    while (More()) {
    }
    EXPECT_TRUE(closed_) << "the server keeps the connection, after: " << read_;
    return std::exchange(read_, {});
  }

 private:
  bool More() {
    char block[4096];
    const ssize_t n = recv(fd_, block, sizeof(block), 0);
    closed_ = n == 0 || (n < 0 && errno == ECONNRESET);
    if (n > 0) read_.append(block, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_;
  std::string read_;
  bool closed_ = false;
};

// Echoes bodies. A request for /held waits until a test answers it, Check() refuses /refused, and
// the response to /page is large.
class Handler : public HttpHandler {
 public:
  std::optional<HttpResponse> Check(HttpRequest& request) override {
    if (request.path != "/refused") return {};
    return HttpResponse{.status = 401, .type = "text/plain", .body = "no\n"};
  }
  void Handle(std::shared_ptr<Exchange> exchange) override {
    const HttpRequest& request = exchange->request();
    if (request.path == "/held") {
      const std::lock_guard lock(mutex_);
      held_ = std::move(exchange);
      changed_.notify_all();
      return;
    }
    std::string body = request.path == "/page" ? std::string(8 << 20, 'x')
                       : request.body.empty()  ? request.path
                                               : request.body;
    exchange->Answer({.type = "text/plain", .body = std::move(body)});
  }
  HttpResponse Refuse(int status, const std::string& message) override {
    return {.status = status, .type = "text/plain", .body = message + "\n"};
  }
  void Finished(const HttpRequest& request, int status, bool left) override {
    const std::lock_guard lock(mutex_);
    finished_.push_back(StrCat(request.path, left ? " left" : StrCat(" ", status)));
    changed_.notify_all();
  }
  void Tick() override {}

  // Waits for a request for /held and returns it.
  std::shared_ptr<Exchange> Held() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return held_ != nullptr; }));
    return std::exchange(held_, nullptr);
  }
  // Waits until a request has ended with the record `end`, for example "/held left".
  void WaitFor(const std::string& end) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] {
      return std::find(finished_.begin(), finished_.end(), end) != finished_.end();
    })) << end;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Exchange> held_;
  std::vector<std::string> finished_;
};

class Running {
 public:
  explicit Running(HttpOptions options = {}) : server_(handler, WithAnyPort(std::move(options))) {
    port_ = server_.Bind();
    thread_ = std::thread([this] { server_.Run(); });
  }
  ~Running() {
    server_.Stop();
    thread_.join();
  }
  Client Connect() const { return Client(port_); }
  // Everything that the server sends in response to these bytes, until it closes.
  std::string Ask(const std::string& bytes) const {
    Client client = Connect();
    client.Send(bytes);
    return client.ReadAll();
  }
  HttpServer& server() { return server_; }

  Handler handler;

 private:
  static HttpOptions WithAnyPort(HttpOptions options) {
    options.port = 0;
    return options;
  }
  HttpServer server_;
  int port_ = 0;
  std::thread thread_;
};

std::string Get(const std::string& path) {
  return StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n");
}
std::string Post(const std::string& path, const std::string& fields, const std::string& body = "") {
  return StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\n", fields, "\r\n", body);
}
// After this request the server closes the connection.
constexpr char kLast[] = "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

int StatusOf(const std::string& response) {
  return response.starts_with("HTTP/1.1 ") ? std::stoi(response.substr(9, 3)) : 0;
}
size_t Responses(const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find("HTTP/1.1 ", at)) != text.npos; ++at) ++count;
  return count;
}
double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

TEST(HttpServer, AnswersPipelinedRequestsInTheirOrder) {
  Running running;
  Client client = running.Connect();
  client.Send(StrCat(Get("/1"), Get("/held"), Post("/3", "Content-Length: 5\r\n", "three"),
                     Get("/4"), kLast));
  EXPECT_TRUE(client.ReadTo("\r\n\r\n/1").ends_with("/1"));
  const auto held = running.handler.Held();  // the third request waits for the second
  std::thread([&] { held->Answer({.type = "text/plain", .body = "second"}); }).join();
  const std::string rest = client.ReadAll();
  EXPECT_EQ(Responses(rest), 4u) << rest;
  size_t at = 0;
  for (const char* body : {"\r\n\r\nsecond", "\r\n\r\nthree", "\r\n\r\n/4", "\r\n\r\n/last"}) {
    at = rest.find(body, at);
    ASSERT_NE(at, rest.npos) << body << rest;
  }
}

TEST(HttpServer, AnswersMorePipelinedRequestsThanItReadsAtOnce) {
  Running running;
  std::string all;
  constexpr size_t kMany = 5000;
  for (size_t i = 0; i + 1 < kMany; ++i) all += Get(StrCat("/", i));
  Client client = running.Connect();
  std::thread sending([&] { client.Send(all + kLast); });
  EXPECT_EQ(Responses(client.ReadAll()), kMany);
  sending.join();
}

TEST(HttpServer, LimitsTheHeader) {
  Running running({.request_line = 1000, .header = 4000, .fields = 10});
  std::string fields;
  for (int i = 0; i < 10; ++i) fields += StrCat("A", i, ": b\r\n");
  const std::vector<std::pair<std::string, int>> cases = {
      {Get("/" + std::string(1000, 'a')), 414},
      {"GET /" + std::string(1000, 'a'), 414},  // a line without an end
      {Post("/", "A: " + std::string(4000, 'b') + "\r\n"), 431},
      {"GET / HTTP/1.1\r\nA: " + std::string(4000, 'b'), 431},
      {Post("/", fields), 431},  // eleven fields, with Host
      {StrCat("GET / HTTP/1.1\r\nHost: x\r\n", fields, "B"), 431}};
  for (const auto& [bytes, status] : cases) {
    const std::string response = running.Ask(bytes);
    EXPECT_EQ(StatusOf(response), status) << bytes.substr(0, 100);
    EXPECT_EQ(Responses(response), 1u);
    EXPECT_NE(response.find("Connection: close\r\n"), response.npos);
  }
  EXPECT_EQ(StatusOf(running.Ask("GET / HTTP/1.1\r\nConnection: close\r\n" +
                                 fields.substr(0, 8 * 7) + "Host: x\r\n\r\n")),
            200);
}

TEST(HttpServer, EndlessHeadersTakeNoMemory) {
  Running running;
  const double before = ResidentBytes();
  std::vector<Client> clients;
  for (int i = 0; i < 16; ++i) clients.push_back(running.Connect());
  std::string lines;
  while (lines.size() < 1 << 16) lines += "A-field: with-a-value\r\n";
  for (Client& client : clients) client.Send("GET / HTTP/1.1\r\n");
  for (int round = 0; round < 128; ++round) {  // 128 MB together
    for (Client& client : clients) client.Send(lines);
  }
  EXPECT_LT(ResidentBytes() - before, 20e6);
  EXPECT_EQ(StatusOf(clients[0].ReadTo("\r\n\r\n")), 431);
}

TEST(HttpServer, LimitsTheTimeOfHeaderBodyAndIdling) {
  const milliseconds soon(100);
  Running running({.header_time = soon, .body_time = soon, .idle_time = soon});
  EXPECT_EQ(running.Ask(""), "");
  EXPECT_EQ(StatusOf(running.Ask("GET / HT")), 408);
  EXPECT_EQ(StatusOf(running.Ask(Post("/", "Content-Length: 5\r\n", "four"))), 408);
  EXPECT_EQ(StatusOf(running.Ask(Post("/", "Transfer-Encoding: chunked\r\n", "5\r\nfour"))), 408);
  // The limit holds for the whole header: a byte now and then does not extend it.
  Client client = running.Connect();
  client.Send("GET / HTTP/1.1\r\nA: ");
  std::thread dribbling([&] {
    while (client.Send("b")) std::this_thread::sleep_for(milliseconds(1));
  });
  EXPECT_EQ(StatusOf(client.ReadTo("\r\n\r\n")), 408);
  client.ShutDown();
  dribbling.join();
}

TEST(HttpServer, RefusesAmbiguousAndMalformedRequests) {
  Running running;
  const std::string next = Get("/smuggled");
  std::vector<std::string> cases = {std::string(1000, '\0') + "\r\n\r\n",
                                    "GET\r\n\r\n",
                                    "\xff\xfe\r\n\r\n",
                                    "\x16\x03\x01",
                                    "GET / HTTP/9.9\r\nHost: x\r\n\r\n",
                                    "GET / HTTP/2.0\r\nHost: x\r\n\r\n",
                                    "GET / HTTP/1.1\nHost: x\n\n",
                                    "GET / HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n\r\n",
                                    "GET / HTTP/1.1\r\n\r\n",
                                    "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
                                    "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n"};
  for (const char* fields : {"Content-Length: abc\r\n",
                             "Content-Length: +29\r\n",
                             "Content-Length: -5\r\n",
                             "Content-Length: 5 5\r\n",
                             "Content-Length: 0x5\r\n",
                             "Content-Length:\r\n",
                             "Content-Length: 99999999999999999999\r\n",
                             "Content-Length: 5, 5\r\n",
                             "Content-Length: 5\r\nContent-Length: 5\r\n",
                             "Content-Length: 5\r\nContent-Length: 6\r\n",
                             "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                             "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                             "Transfer-Encoding: gzip\r\n",
                             "Transfer-Encoding: gzip, chunked\r\n",
                             "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
                             "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                             "Transfer-Encoding: xchunked\r\n",
                             "A : b\r\n",
                             ": b\r\n",
                             "A\r\n",
                             "A: b\r\n c\r\n",
                             " A: b\r\n",
                             "A: b\x01\r\n",
                             "A: b\x7f\r\n",
                             "A: b\rc\r\n"}) {
    cases.push_back(Post("/", fields, "fives"));
  }
  using namespace std::string_literals;
  cases.push_back(Post("/", "Authorization: Bearer secret\0\r\n"s));
  cases.push_back("POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  for (const char* body :
       {"x\r\n", "+5\r\nfives\r\n", "5\nfives\r\n", "5\r\nfivesss\r\n", "-1\r\n",
        "5 x\r\nfives\r\n", "fffffffffffffffff\r\n", "0\r\nA: b\r\n c\x01\r\n\r\n"}) {
    cases.push_back(Post("/", "Transfer-Encoding: chunked\r\n", body));
  }
  for (const std::string& bytes : cases) {
    const std::string response = running.Ask(bytes + next);
    EXPECT_EQ(StatusOf(response), 400) << bytes.substr(0, 200);
    EXPECT_EQ(Responses(response), 1u) << response;
  }
  EXPECT_EQ(StatusOf(running.Ask(Post("/", "Expect: tea\r\n"))), 417);
}

TEST(HttpServer, ReadsBodiesInAnyPieces) {
  Running running({.threads = 1});
  const std::string whole =
      StrCat("\r\n", Post("/", "Content-Length: 5\r\n", "fives"),
             Post("/", "transfer-encoding: Chunked\r\n",
                  "3;name=\"a b\"\r\nab\n\r\n0002\r\nde\r\n0\r\nAuthorization: x\r\n\r\n"),
             Post("/empty", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n"), kLast);
  for (const size_t piece : {whole.size(), size_t{1}, size_t{7}}) {
    Client client = running.Connect();
    for (size_t at = 0; at < whole.size(); at += piece) {
      client.Send(whole.substr(at, piece));
      // The server's only thread reads the piece before it answers a request that arrives later.
      EXPECT_EQ(StatusOf(running.Ask(kLast)), 200);
    }
    const std::string all = client.ReadAll();
    EXPECT_EQ(Responses(all), 4u) << all;
    for (const char* body :
         {"\r\n\r\nfives", "\r\n\r\nab\nde", "\r\n\r\n/empty", "\r\n\r\n/last"}) {
      EXPECT_NE(all.find(body), all.npos) << body << all;
    }
  }
}

TEST(HttpServer, LimitsTheBody) {
  Running running({.body = 1000});
  const std::string large(1001, 'x');
  EXPECT_EQ(StatusOf(running.Ask(Post("/", "Content-Length: 1001\r\n"))), 413);
  EXPECT_EQ(StatusOf(running.Ask(Post("/", "Content-Length: 1001\r\n", large))), 413);
  EXPECT_EQ(StatusOf(running.Ask(Post("/", "Transfer-Encoding: chunked\r\n", "3e9\r\n"))), 413);
  EXPECT_EQ(StatusOf(running.Ask(Post("/", "Transfer-Encoding: chunked\r\n",
                                      StrCat("3e8\r\n", large.substr(1), "\r\n1\r\nx\r\n")))),
            413);
  // The size of chunk extensions is limited too.
  EXPECT_EQ(StatusOf(running.Ask(
                Post("/", "Transfer-Encoding: chunked\r\n", "1;a=\"" + std::string(100'000, 'x')))),
            400);
  EXPECT_EQ(StatusOf(running.Ask(
                Post("/", "Content-Length: 1000\r\nConnection: close\r\n", large.substr(1)))),
            200);
}

TEST(HttpServer, ARequestRefusedByItsHeaderLeavesNothingUnread) {
  Running running;
  Client client = running.Connect();
  client.Send(Post("/refused", "Content-Length: 5\r\n", "GET /"));
  EXPECT_EQ(StatusOf(client.ReadTo("no\n")), 401);
  client.Send(kLast);
  const std::string rest = client.ReadAll();
  EXPECT_EQ(Responses(rest), 1u) << rest;
  EXPECT_TRUE(rest.ends_with("/last"));
}

TEST(HttpServer, ContinuesWhereItIsExpected) {
  Running running({.body = 1000});
  Client client = running.Connect();
  client.Send(Post("/", "Expect: 100-continue\r\nConnection: close\r\nContent-Length: 5\r\n"));
  EXPECT_EQ(client.ReadTo("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("fives");
  EXPECT_TRUE(client.ReadAll().ends_with("\r\n\r\nfives"));
  EXPECT_EQ(StatusOf(running.Ask(Post("/", "Expect: 100-continue\r\nContent-Length: 1001\r\n"))),
            413);
  EXPECT_EQ(
      StatusOf(running.Ask(Post("/refused", "Expect: 100-continue\r\nContent-Length: 5\r\n"))),
      401);
}

TEST(HttpServer, KnowsHeadOldClientsAndForms) {
  Running running;
  const std::string head =
      running.Ask("HEAD /abc HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(head.find("Content-Length: 4\r\n"), head.npos);
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  EXPECT_TRUE(running.Ask("GET /abc HTTP/1.0\r\n\r\n").ends_with("/abc"));
  const std::string kept =
      running.Ask("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /b HTTP/1.0\r\n\r\n");
  EXPECT_EQ(Responses(kept), 2u);
  EXPECT_NE(kept.find("Connection: keep-alive\r\n"), kept.npos);
  for (const auto& [target, path] :
       {std::pair("/a%20b%2", "/a b%2"), std::pair("/a?b", "/a"), std::pair("http://x/a", "/a"),
        std::pair("http://x", "/"), std::pair("http://x?b=/a", "/"), std::pair("*", "*")}) {
    const std::string response =
        running.Ask(StrCat("GET ", target, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    EXPECT_TRUE(response.ends_with(StrCat("\r\n\r\n", path))) << response;
  }
}

// The X-Request-Id of each response in `text`.
std::vector<std::string> Ids(const std::string& text) {
  constexpr std::string_view kName = "\r\nX-Request-Id: ";
  std::vector<std::string> ids;
  for (size_t at = 0; (at = text.find(kName, at)) != text.npos;) {
    at += kName.size();
    ids.push_back(text.substr(at, text.find("\r\n", at) - at));
  }
  return ids;
}

TEST(HttpServer, EveryResponseHasAnId) {
  Running running;
  const auto ask = [&](const std::string& fields) {
    const auto ids = Ids(
        running.Ask(StrCat("GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", fields, "\r\n")));
    return ids.size() == 1 ? ids[0] : StrCat(ids.size(), " ids");
  };
  const std::string longest(64, 'x');
  EXPECT_EQ(ask("X-Request-Id: mine-1.a_B\r\n"), "mine-1.a_B");
  EXPECT_EQ(ask("x-request-id: " + longest + "\r\n"), longest);
  // Other ids are replaced, so that a client cannot write what it likes into logs.
  std::set<std::string> made;
  for (const std::string fields : {"", "X-Request-Id: \r\n", "X-Request-Id: a b\r\n",
                                   "X-Request-Id: \xc3\xa9\r\n", "X-Request-Id: a\"b\r\n"}) {
    const std::string id = ask(fields);
    EXPECT_EQ(id.size(), 15u) << id;
    made.insert(id);
  }
  made.insert(ask("X-Request-Id: " + longest + "x\r\n"));
  EXPECT_EQ(made.size(), 6u);
  EXPECT_EQ(Ids(running.Ask("nonsense\r\n\r\n")).size(), 1u);  // refused by the transport
}

// A stream of pieces that a test pushes.
struct Source {
  std::mutex mutex;
  std::string waiting;
  bool ended = false;
  Exchange::Next Take(std::string& piece) {
    const std::lock_guard lock(mutex);
    piece = std::exchange(waiting, {});
    return !piece.empty() ? Exchange::Next::kPiece
           : ended        ? Exchange::Next::kEnd
                          : Exchange::Next::kNothing;
  }
  void Push(const std::string& piece, bool last = false) {
    const std::lock_guard lock(mutex);
    waiting += piece;
    ended = last;
  }
};

TEST(HttpServer, StreamsPiecesAsTheyAreMade) {
  Running running;
  for (const bool old : {false, true}) {
    Client client = running.Connect();
    client.Send(old ? "GET /held HTTP/1.0\r\n\r\n" : Get("/held") + kLast);
    const auto held = running.handler.Held();
    const auto source = std::make_shared<Source>();
    held->Stream({.type = "text/plain"},
                 [source](std::string& piece) { return source->Take(piece); });
    const std::string head = client.ReadTo("\r\n\r\n");
    EXPECT_EQ(head.find("chunked") == head.npos, old);
    for (const std::string piece : {"one\n", "a second piece\n"}) {
      source->Push(piece);
      held->Wake();
      EXPECT_EQ(client.ReadTo(piece),
                old ? piece : StrCat(piece.size() == 4 ? "4" : "\r\nf", "\r\n", piece));
    }
    source->Push("", /*last=*/true);
    held->Wake();
    const std::string rest = client.ReadAll();
    EXPECT_EQ(Responses(rest), old ? 0u : 1u) << rest;
    EXPECT_TRUE(old ? rest.empty() : rest.starts_with("\r\n0\r\n\r\nHTTP/1.1 200 ")) << rest;
    held->Wake(), held->Answer({}), held->Abort();  // nothing happens any more
  }
}

TEST(HttpServer, NoticesThatAClientLeaves) {
  Running running;
  Client client = running.Connect();
  client.Send(Get("/held"));
  const auto held = running.handler.Held();
  client.Close();
  running.handler.WaitFor("/held left");
  held->Answer({.type = "text/plain"});  // nothing happens
}

TEST(HttpServer, NoticesThatAClientOfAStreamLeaves) {
  Running running;
  Client client = running.Connect();
  client.Send(Get("/held"));
  const auto held = running.handler.Held();
  held->Stream({.type = "text/plain"}, [](std::string&) { return Exchange::Next::kNothing; });
  client.ReadTo("\r\n\r\n");
  client.Close();
  running.handler.WaitFor("/held left");
}

TEST(HttpServer, NoticesThatAClientLeavesBehindManyRequests) {
  Running running({.header = 1000});
  Client client = running.Connect();
  client.Send(Get("/held"));
  const auto held = running.handler.Held();
  for (int i = 0; i < 3000; ++i) client.Send(Get("/after"));  // more than the server reads ahead
  client.Close();
  running.handler.WaitFor("/held left");
}

TEST(HttpServer, AClientThatReadsNothingIsGivenUp) {
  Running running({.write_time = milliseconds(100)});
  Client page = running.Connect(), stream = running.Connect();
  page.Send(Get("/page"));
  stream.Send(Get("/held"));
  const auto held = running.handler.Held();
  held->Stream({.type = "text/plain"}, [](std::string& piece) {
    piece.assign(1 << 20, 'x');
    return Exchange::Next::kPiece;
  });
  running.handler.WaitFor("/page left");
  running.handler.WaitFor("/held left");
  EXPECT_EQ(StatusOf(running.Ask(kLast)), 200);
}

TEST(HttpServer, AWholeResponseReachesAClientThatSendsNoMore) {
  Running running;
  Client client = running.Connect();
  client.Send(Get("/page"));
  client.ShutDown();
  EXPECT_GT(client.ReadAll().size(), size_t{8 << 20});
  running.handler.WaitFor("/page 200");
}

TEST(HttpServer, FurtherConnectionsWait) {
  Running running({.connections = 2});
  Client first = running.Connect(), second = running.Connect(), third = running.Connect();
  for (Client* client : {&first, &second}) {
    client->Send(Get("/x"));
    EXPECT_EQ(StatusOf(client->ReadTo("/x")), 200);
  }
  third.Send(kLast);
  second.Send(Get("/y"));
  EXPECT_EQ(StatusOf(second.ReadTo("/y")), 200);
  EXPECT_EQ(running.server().connections(), 2u);
  first.Close();
  EXPECT_EQ(StatusOf(third.ReadAll()), 200);
}

TEST(HttpServer, StopsWithRequestsAndConnectionsOpen) {
  std::shared_ptr<Exchange> held;
  {
    Running running;
    Client idle = running.Connect(), waiting = running.Connect();
    waiting.Send(Get("/held"));
    held = running.handler.Held();
    EXPECT_EQ(running.server().active(), 1u);
    running.server().Stop();
    EXPECT_EQ(idle.ReadAll() + waiting.ReadAll(), "");
    running.handler.WaitFor("/held left");
  }
  held->Answer({.type = "text/plain"});  // nothing happens
}

}  // namespace
}  // namespace linnet::server
