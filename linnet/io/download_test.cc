#include "linnet/io/download.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "linnet/io/file.h"
#include "linnet/io/sha256.h"
#include "linnet/io/test_util.h"

namespace linnet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Request {
  std::string path;
  size_t from = 0;     // start of the requested range
  bool range = false;  // whether a range was requested
};

// The bytes of a reply. After sending them, the server closes the connection, or leaves it open if
// `stall` is true.
struct Reply {
  std::string bytes;
  bool stall = false;
};

// Serves one connection at a time; `answer` creates the replies.
class HttpServer {
 public:
  explicit HttpServer(std::function<Reply(const Request&)> answer) : answer_(std::move(answer)) {
    setenv("no_proxy", "*", 1);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    if (bind(socket_, raw, size) != 0 || listen(socket_, 16) != 0 ||
        getsockname(socket_, raw, &size) != 0) {
      throw RuntimeError("no port to listen on");
    }
    url_ = StrCat("http://127.0.0.1:", ntohs(address.sin_port), "/");
    thread_ = std::thread([this] { Serve(); });
  }
  ~HttpServer() {
    shutdown(socket_, SHUT_RDWR);
    thread_.join();
    close(socket_);
    for (int connection : stalled_) close(connection);
  }

  const std::string& url() const { return url_; }
  // The requests in order of arrival: "/a", "/a from 7".
  std::vector<std::string> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void Serve() {
    for (int connection; (connection = accept(socket_, nullptr, nullptr)) >= 0;) {
      std::string text;
      char block[4096];
      ssize_t n = 0;
      while (text.find("\r\n\r\n") == text.npos && (n = read(connection, block, 4096)) > 0) {
        text.append(block, static_cast<size_t>(n));
      }
      Request request;
      request.path = text.substr(4, text.find(' ', 4) - 4);
      if (const size_t at = text.find("Range: bytes="); at != text.npos) {
        request.range = true;
        request.from = std::stoul(text.substr(at + 13));
      }
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request.path +
                            (request.range ? StrCat(" from ", request.from) : std::string()));
      }
      const Reply reply = answer_(request);
      send(connection, reply.bytes.data(), reply.bytes.size(), MSG_NOSIGNAL);
      if (reply.stall) {
        stalled_.push_back(connection);
      } else {
        close(connection);
      }
    }
  }

  const std::function<Reply(const Request&)> answer_;
  const int socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string url_;
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::vector<int> stalled_;
  std::thread thread_;
};

std::string Head(const std::string& status, const std::string& more = "") {
  return StrCat("HTTP/1.1 ", status, "\r\nConnection: close\r\n", more, "\r\n");
}

std::string Length(size_t bytes) { return StrCat("Content-Length: ", bytes, "\r\n"); }

Reply Whole(const std::string& content) {
  return {Head("200 OK", Length(content.size())) + content};
}

// The reply of a server that supports ranges.
Reply Ranged(const std::string& content, const Request& request) {
  if (!request.range) return Whole(content);
  if (request.from >= content.size()) return {Head("416 Range Not Satisfiable", Length(0))};
  const std::string rest = content.substr(request.from);
  return {
      Head("206 Partial Content", StrCat(Length(rest.size()), "Content-Range: bytes ", request.from,
                                         "-", content.size() - 1, "/", content.size(), "\r\n")) +
      rest};
}

std::string Hash(const std::string& text) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(text)));
  return hash.Hex();
}

class DownloadTest : public ::testing::Test {
 protected:
  DownloadTest() {
    for (size_t i = 0; i < 50'000; ++i) content_ += static_cast<char>(i * i >> 7);
    file_ = {"a.gz", content_.size(), Hash(content_)};
  }

  DownloadOutcome Get(const std::vector<std::string>& mirrors, bool force = false) {
    return Download(file_, dir_.path(),
                    {.mirrors = mirrors, .force = force, .stall_seconds = stall_seconds_},
                    {.failed = [this](const std::string& line) { failed_.push_back(line); }});
  }
  std::string ErrorOfGet(const std::vector<std::string>& mirrors) {
    return ErrorOf([&] { Get(mirrors); });
  }

  void WritePart(const std::string& bytes) { WriteFileAtomically(dir_ / "a.gz.part", bytes); }
  std::string Part() { return ReadFile(dir_ / "a.gz.part"); }
  // Expects the complete file in the folder, and no other file.
  void ExpectRight() {
    EXPECT_TRUE(ReadFile(dir_ / "a.gz") == content_);
    EXPECT_EQ(dir_.Entries(), 1);
  }

  TempDir dir_;
  std::string content_;
  RemoteFile file_;
  std::vector<std::string> failed_;
  int stall_seconds_ = 30;
  const std::function<Reply(const Request&)> ranged_ = [this](const Request& request) {
    return Ranged(content_, request);
  };
};

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(Hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  hash.Update(std::as_bytes(std::span("ab", 2)));
  hash.Hex();
  hash.Update(std::as_bytes(std::span("c", 1)));
  EXPECT_EQ(hash.Hex(), Hash("abc"));
}

TEST_F(DownloadTest, DownloadsAFileOnce) {
  HttpServer server(ranged_);
  uint64_t done = 0, total = 0;
  const auto show = [&](uint64_t now, uint64_t of) {
    EXPECT_GT(now, done);
    done = now;
    total = of;
  };
  const std::string folder = dir_ / "new/folder";
  const DownloadOptions options = {.mirrors = {server.url() + "sub"}};
  EXPECT_EQ(Download(file_, folder, options, {.progress = show}), DownloadOutcome::kDownloaded);
  EXPECT_EQ(done, content_.size());
  EXPECT_EQ(total, content_.size());
  EXPECT_TRUE(ReadFile(folder + "/a.gz") == content_);
  EXPECT_EQ(Download(file_, folder + "/", options, {}), DownloadOutcome::kPresent);
  EXPECT_THAT(server.requests(), ElementsAre("/sub/a.gz"));
}

TEST_F(DownloadTest, ContinuesAPartialDownload) {
  HttpServer server(ranged_);
  WritePart(content_.substr(0, 1000));
  EXPECT_EQ(Get({server.url()}), DownloadOutcome::kDownloaded);
  ExpectRight();
  EXPECT_THAT(server.requests(), ElementsAre("/a.gz from 1000"));
}

TEST_F(DownloadTest, UnknownSizeOrChecksumIsNotChecked) {
  HttpServer server(ranged_);
  const std::string other = Hash("another file");
  file_.size = 0;
  WritePart(content_.substr(0, 1000));
  EXPECT_EQ(Get({server.url()}), DownloadOutcome::kDownloaded);
  ExpectRight();
  EXPECT_EQ(Get({server.url()}), DownloadOutcome::kPresent);
  file_.sha256 = other;
  EXPECT_THAT(ErrorOfGet({server.url()}), HasSubstr("different SHA-256"));
  file_.sha256 = "";
  EXPECT_EQ(Get({server.url()}), DownloadOutcome::kPresent);
  std::filesystem::remove(dir_ / "a.gz");
  EXPECT_EQ(Get({server.url()}), DownloadOutcome::kDownloaded);
  ExpectRight();
  EXPECT_THAT(server.requests(), ElementsAre("/a.gz from 1000", "/a.gz"));
}

TEST_F(DownloadTest, CompletePartNeedsNoServer) {
  WritePart(content_);
  EXPECT_EQ(Get({}), DownloadOutcome::kDownloaded);
  ExpectRight();
}

TEST_F(DownloadTest, StartsOverIfTheServerIgnoresRanges) {
  HttpServer server([this](const Request&) { return Whole(content_); });
  WritePart(content_.substr(0, 1000));
  Get({server.url()});
  ExpectRight();
  EXPECT_THAT(server.requests(), ElementsAre("/a.gz from 1000"));
}

TEST_F(DownloadTest, StartsOverIfTheRangeIsRefusedOrWrong) {
  for (const char* status : {"416 Range Not Satisfiable", "206 Partial Content"}) {
    HttpServer server([&](const Request& request) {
      if (!request.range) return Whole(content_);
      return Reply{Head(status, "Content-Length: 4\r\nContent-Range: bytes 10-13/50000\r\n") +
                   "what"};
    });
    TempDir dir;
    WriteFileAtomically(dir / "a.gz.part", content_.substr(0, 1000));
    Download(file_, dir.path(), {.mirrors = {server.url()}}, {});
    EXPECT_TRUE(ReadFile(dir / "a.gz") == content_);
    EXPECT_THAT(server.requests(), ElementsAre("/a.gz from 1000", "/a.gz"));
  }
}

TEST_F(DownloadTest, StartsOverIfThePartIsOfAnotherFile) {
  HttpServer server(ranged_);
  WritePart(std::string(1000, 'x'));
  Get({server.url()});
  ExpectRight();
  EXPECT_THAT(server.requests(), ElementsAre("/a.gz from 1000", "/a.gz"));
  EXPECT_THAT(failed_, ElementsAre());
}

TEST_F(DownloadTest, StartsOverIfThePartIsTooLong) {
  for (const size_t size : {content_.size(), content_.size() + 1}) {
    HttpServer server(ranged_);
    TempDir dir;
    WriteFileAtomically(dir / "a.gz.part", std::string(size, 'x'));
    Download(file_, dir.path(), {.mirrors = {server.url()}}, {});
    EXPECT_TRUE(ReadFile(dir / "a.gz") == content_);
    EXPECT_THAT(server.requests(), ElementsAre("/a.gz"));
  }
}

TEST_F(DownloadTest, TriesMirrorsInOrder) {
  HttpServer server([this](const Request& request) {
    if (request.path.starts_with("/404/")) return Reply{Head("404 Not Found", Length(3)) + "no!"};
    if (request.path.starts_with("/500/")) return Reply{Head("500 Oh", Length(0))};
    if (request.path.starts_with("/203/")) return Reply{Head("203 Changed", Length(2)) + "no"};
    if (request.path.starts_with("/204/")) return Reply{Head("204 No Content")};
    if (request.path.starts_with("/closed/")) return Reply{};
    if (request.path.starts_with("/other/")) return Whole(std::string(content_.size(), 'x'));
    if (request.path.starts_with("/longer/")) return Whole(content_ + "x");
    if (request.path.starts_with("/longer-unsaid/")) return Reply{Head("200 OK") + content_ + "x"};
    if (request.path.starts_with("/ftp/")) {
      return Reply{Head("302 Found", "Location: ftp://127.0.0.1/a.gz\r\nContent-Length: 0\r\n")};
    }
    if (request.path.starts_with("/round/")) {
      return Reply{Head("302 Found", StrCat("Location: ", request.path, "\r\n", Length(0)))};
    }
    return Whole(content_);
  });
  std::vector<std::string> mirrors = {"http://127.0.0.1:1/"};  // no server at this port
  const std::vector<std::pair<std::string, std::string>> reasons = {
      {"404", "HTTP status 404"},
      {"500", "HTTP status 500"},
      {"203", "HTTP status 203"},
      {"204", "HTTP status 204"},
      {"closed", "Empty reply"},
      {"other", "SHA-256"},
      {"longer", "offers a file of 50001 bytes, not of 50000"},
      {"longer-unsaid", "more than the 50000 bytes"},
      {"ftp", "ftp"},
      {"round", "redirect"}};
  for (const auto& [name, reason] : reasons) mirrors.push_back(server.url() + name);
  mirrors.push_back(server.url() + "good/");
  mirrors.push_back(server.url() + "not-needed/");
  EXPECT_EQ(Get(mirrors), DownloadOutcome::kDownloaded);
  ExpectRight();
  ASSERT_EQ(failed_.size(), reasons.size() + 1);
  EXPECT_THAT(failed_[0], StartsWith("http://127.0.0.1:1/a.gz: "));
  for (size_t i = 0; i < reasons.size(); ++i) {
    EXPECT_THAT(failed_[i + 1], AllOf(StartsWith(StrCat(server.url(), reasons[i].first, "/a.gz: ")),
                                      HasSubstr(reasons[i].second)));
  }
  EXPECT_EQ(server.requests().back(), "/good/a.gz");
}

TEST_F(DownloadTest, TheNextMirrorContinuesATruncatedTransfer) {
  HttpServer server([this](const Request& request) {
    if (request.path.starts_with("/bad/")) {
      return Reply{Head("200 OK", Length(content_.size())) + content_.substr(0, 5000)};
    }
    if (request.path.starts_with("/worse/")) {  // this mirror does not announce the length
      return Reply{Head("206 Partial Content", "Content-Range: bytes 5000-49999/50000\r\n") +
                   content_.substr(5000, 2000)};
    }
    return Ranged(content_, request);
  });
  Get({server.url() + "bad", server.url() + "worse", server.url() + "good"});
  ExpectRight();
  EXPECT_THAT(server.requests(),
              ElementsAre("/bad/a.gz", "/worse/a.gz from 5000", "/good/a.gz from 7000"));
  EXPECT_THAT(failed_, ElementsAre(HasSubstr("45000 bytes remaining"),
                                   HasSubstr("ends after 7000 of 50000 bytes")));
}

TEST_F(DownloadTest, GivesUpOnAServerThatStalls) {
  HttpServer server([this](const Request& request) {
    if (request.path.starts_with("/mute/")) return Reply{"", true};
    if (request.path.starts_with("/tired/")) {
      return Reply{Head("200 OK", Length(content_.size())) + content_.substr(0, 5000), true};
    }
    return Ranged(content_, request);
  });
  stall_seconds_ = 2;
  Get({server.url() + "mute", server.url() + "tired", server.url() + "good"});
  ExpectRight();
  EXPECT_THAT(server.requests(), ElementsAre("/mute/a.gz", "/tired/a.gz", "/good/a.gz from 5000"));
  EXPECT_THAT(failed_, ElementsAre(HasSubstr("too slow"), HasSubstr("too slow")));
}

TEST_F(DownloadTest, FollowsRedirects) {
  HttpServer server([this](const Request& request) {
    if (request.path == "/moved/a.gz") return Ranged(content_, request);
    return Reply{Head("302 Found",
                      "Location: /moved/a.gz\r\nContent-Range: bytes 3-9/10\r\n"
                      "Content-Length: 4\r\n") +
                 "over"};
  });
  WritePart(content_.substr(0, 10));
  Get({server.url()});
  ExpectRight();
  EXPECT_THAT(server.requests(), ElementsAre("/a.gz from 10", "/moved/a.gz from 10"));
}

TEST_F(DownloadTest, SuggestsARemedyIfAllMirrorsFail) {
  HttpServer server([](const Request&) { return Reply{Head("404 Not Found", Length(0))}; });
  EXPECT_EQ(ErrorOfGet({server.url()}),
            StrCat("runtime: ", dir_ / "a.gz", ": no mirror provided this file; the last failure: ",
                   "HTTP status 404; try again later, or name a mirror with --mirror URL"));
  EXPECT_EQ(dir_.Entries(), 0);
  WritePart(content_.substr(0, 1000));
  EXPECT_THAT(ErrorOfGet({server.url()}), HasSubstr("a.gz.part keeps the 1.00 kB received so far"));
  EXPECT_EQ(Part(), content_.substr(0, 1000));
}

TEST_F(DownloadTest, KeepsThePartIfTheLengthIsWrong) {
  HttpServer server([](const Request&) { return Whole("Please log in"); });
  WritePart(content_.substr(0, 1000));
  EXPECT_THAT(ErrorOfGet({server.url()}), HasSubstr("offers a file of 13 bytes"));
  EXPECT_EQ(Part(), content_.substr(0, 1000));
}

TEST_F(DownloadTest, DeletesAFileWithAWrongChecksum) {
  HttpServer server([this](const Request&) { return Whole(std::string(content_.size(), 'x')); });
  EXPECT_THAT(ErrorOfGet({server.url()}), HasSubstr("SHA-256"));
  EXPECT_EQ(dir_.Entries(), 0);
}

TEST_F(DownloadTest, KeepsAnotherFileUnlessForced) {
  HttpServer server(ranged_);
  WriteFileAtomically(dir_ / "a.gz", "mine");
  EXPECT_THAT(ErrorOfGet({server.url()}), AllOf(StartsWith("input: "), HasSubstr("--force")));
  EXPECT_EQ(ReadFile(dir_ / "a.gz"), "mine");
  EXPECT_THAT(server.requests(), ElementsAre());
  EXPECT_EQ(Get({server.url()}, /*force=*/true), DownloadOutcome::kDownloaded);
  ExpectRight();
}

TEST_F(DownloadTest, ForceKeepsTheOldFileUntilTheNewOneIsVerified) {
  WriteFileAtomically(dir_ / "a.gz", "mine");
  EXPECT_THAT(ErrorOf([&] { Get({"http://127.0.0.1:1/"}, /*force=*/true); }), HasSubstr("mirror"));
  EXPECT_EQ(ReadFile(dir_ / "a.gz"), "mine");
  EXPECT_EQ(dir_.Entries(), 1);
}

TEST_F(DownloadTest, StopsAndContinues) {
  HttpServer server([this](const Request& request) {
    if (request.range) return Ranged(content_, request);
    return Reply{Head("200 OK", Length(content_.size())) + content_.substr(0, 5000), true};
  });
  bool begun = false;
  const DownloadHooks hooks = {.stop = [&] { return begun; },
                               .progress = [&](uint64_t, uint64_t) { begun = true; }};
  EXPECT_EQ(Download(file_, dir_.path(), {.mirrors = {server.url()}}, hooks),
            DownloadOutcome::kStopped);
  const std::string part = Part();
  EXPECT_FALSE(part.empty());
  EXPECT_TRUE(content_.starts_with(part));
  Get({server.url()});
  ExpectRight();
  EXPECT_THAT(server.requests(), ElementsAre("/a.gz", StrCat("/a.gz from ", part.size())));
}

TEST_F(DownloadTest, OneProcessAtATime) {
  WritePart("x");
  const int fd = open(PartPath(file_, dir_.path()).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  EXPECT_THAT(ErrorOfGet({"http://127.0.0.1:1/"}),
              AllOf(StartsWith("input: "), HasSubstr("another process")));
  close(fd);
  EXPECT_EQ(Part(), "x");
}

TEST_F(DownloadTest, UnwritableFoldersAndFiles) {
  WriteFileAtomically(dir_ / "file", "x");
  EXPECT_THAT(ErrorOf([&] { Download(file_, dir_ / "file/a", {}, {}); }),
              AllOf(StartsWith("input: "), HasSubstr("cannot create this folder")));
  EXPECT_THAT(ErrorOf([&] { Download(file_, dir_ / "file", {}, {}); }), StartsWith("input: "));
  EXPECT_THAT(ErrorOf([&] { Download(file_, dir_ / "new", {}, {}); }), HasSubstr("no mirror"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "new"));  // removed: nothing was downloaded
  EXPECT_THAT(ErrorOf([&] { Download(file_, "/proc", {}, {}); }),
              AllOf(StartsWith("input: "), HasSubstr("/proc/a.gz.part: cannot be written")));
  if (geteuid() != 0) {  // root can write everywhere
    std::filesystem::create_directory(dir_ / "locked");
    chmod((dir_ / "locked").c_str(), 0555);
    EXPECT_THAT(ErrorOf([&] { Download(file_, dir_ / "locked", {}, {}); }),
                AllOf(StartsWith("input: "), HasSubstr("locked/a.gz.part: cannot be written")));
  }
  ASSERT_EQ(mkfifo((dir_ / "a.gz.part").c_str(), 0666), 0);
  EXPECT_THAT(ErrorOfGet({}), AllOf(StartsWith("input: "), HasSubstr("not a regular file")));
  std::filesystem::create_directory(dir_ / "a.gz");
  EXPECT_THAT(ErrorOfGet({}), AllOf(StartsWith("input: "), HasSubstr("a folder")));
}

TEST_F(DownloadTest, FullDiskDoesNotTryOtherMirrors) {
  HttpServer server(ranged_);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {10'000, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = ErrorOfGet({server.url(), server.url()});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, AllOf(StartsWith("runtime: "), HasSubstr("writing failed after 10.0 kB")));
  EXPECT_TRUE(Part() == content_.substr(0, 10'000));
  EXPECT_EQ(server.requests().size(), 1u);
}

}  // namespace
}  // namespace linnet
