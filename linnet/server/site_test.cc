#include "linnet/server/site.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "linnet/io/file.h"
#include "linnet/io/test_util.h"
#include "linnet/server/test_util.h"

namespace linnet::server {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void Write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  WriteFileAtomically(path, text);
}

TEST(Site, HasTheBuiltInFiles) {
  const Site site = BuiltInSite();
  size_t files = 0;
  for (const auto& file : fs::directory_iterator("linnet/server/pages")) {
    const auto page = site.find("/" + file.path().filename().string());
    ASSERT_NE(page, site.end()) << file.path();
    EXPECT_EQ(*page->second.bytes, ReadFile(file.path())) << file.path();
    ++files;
  }
  EXPECT_EQ(files + 1, site.size());
  EXPECT_EQ(site.at("/").tag, site.at("/couplet.html").tag);
}

TEST(Site, HasTheFilesOfAFolderThatAreMeantForClients) {
  const TempDir dir;
  Write(dir / "site/index.html", "<title>a</title>");
  Write(dir / "site/a.wasm", "module");
  Write(dir / "site/models/a.safetensors", std::string(100, 'x'));
  Write(dir / "site/empty.txt", "");
  Write(dir / "site/.git/config", "secret");
  Write(dir / "site/.secret", "secret");
  Write(dir / "site/v1/models", "{}");
  Write(dir / "secret", "secret");
  fs::create_symlink(dir / "secret", dir / "site/link.html");
  fs::create_symlink(dir.path(), dir / "site/folder");
  fs::create_symlink("loop", dir / "site/loop");
  for (const std::string folder : {"site", "site/", "site/../site"}) {
    const Site site = ReadSite(dir / folder);
    std::set<std::string> paths;
    for (const auto& [path, page] : site) paths.insert(path);
    EXPECT_EQ(paths, (std::set<std::string>{"/", "/index.html", "/a.wasm", "/empty.txt",
                                            "/models/a.safetensors"}))
        << folder;
    EXPECT_EQ(site.at("/a.wasm").type, "application/wasm");
    EXPECT_EQ(site.at("/").type, "text/html; charset=utf-8");
    EXPECT_EQ(*site.at("/").bytes, "<title>a</title>");
  }
}

TEST(Site, RefusesWhatIsNoSite) {
  const TempDir dir;
  Write(dir / "page.html", "");
  const auto error = [&](const std::string& folder) { return ErrorOf([&] { ReadSite(folder); }); };
  EXPECT_THAT(error(dir.path()), HasSubstr("has no index.html"));
  EXPECT_THAT(error(dir / "none"), HasSubstr("is no folder"));
  EXPECT_THAT(error(dir / "page.html"), HasSubstr("is no folder"));
  fs::create_symlink(dir / "page.html", dir / "index.html");
  EXPECT_THAT(error(dir.path()), HasSubstr("index.html is a link"));
}

// Clients that leave in the middle of a large file, and clients that read it whole, on connections
// that stay open.
TEST(Site, IsServed) {
  const TempDir dir;
  std::string large(20'000'000, 0);
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * i >> 7);
  Write(dir / "index.html", "<title>a</title>");
  Write(dir / "large.bin", large);
  Write(dir / "a\"b\n.txt", "");
  const RunningServer server({.sequences = 2}, {.api_key = "key", .site = dir.path()});
  httplib::Client client("127.0.0.1", server.port());
  client.set_keep_alive(true);

  const auto first = client.Get("/");
  ASSERT_TRUE(first);
  EXPECT_EQ(first->body, "<title>a</title>");
  const std::string tag = first->get_header_value("ETag");
  // cpp-httplib takes 304 for a response with a body that the end of the connection ends.
  const auto same =
      httplib::Client("127.0.0.1", server.port()).Get("/index.html", {{"If-None-Match", tag}});
  ASSERT_TRUE(same);
  EXPECT_EQ(same->status, 304);
  EXPECT_EQ(same->body, "");
  EXPECT_FALSE(same->has_header("Content-Length"));
  EXPECT_EQ(client.Get("/", {{"If-None-Match", "\"other\""}})->status, 200);
  for (const std::string tags : {"*", "\"other\" , W/TAG", "TAG,\"other\"", ",W/TAG,"}) {
    std::string given = tags;
    if (const size_t at = given.find("TAG"); at != given.npos) given.replace(at, 3, tag);
    const auto known =
        httplib::Client("127.0.0.1", server.port()).Get("/", {{"If-None-Match", given}});
    ASSERT_TRUE(known);
    EXPECT_EQ(known->status, 304) << given;
  }
  EXPECT_EQ(client.Get("/couplet.html")->status, 404);
  EXPECT_EQ(client.Get("/../secret")->status, 404);
  EXPECT_EQ(client.Get("/v1/models")->status, 401);
  EXPECT_EQ(client.Post("/index.html", "{}", "application/json")->status, 405);

  // No file's name gets into the metrics.
  ASSERT_TRUE(client.Get("/a%22b%0A.txt"));
  std::string metrics;  // a request is counted shortly after its answer
  for (int i = 0; i < 600 && metrics.find("path=\"pages\",status=\"200\"") == metrics.npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto got = client.Get("/metrics", {{"Authorization", "Bearer key"}});
    ASSERT_TRUE(got);
    metrics = got->body;
  }
  EXPECT_THAT(metrics, HasSubstr("path=\"pages\",status=\"200\""));
  EXPECT_EQ(metrics.find("a\"b"), metrics.npos);

  std::vector<std::future<void>> readers;
  for (int reader = 0; reader < 8; ++reader) {
    readers.push_back(std::async(std::launch::async, [&, reader] {
      httplib::Client own("127.0.0.1", server.port());
      own.set_read_timeout(600);
      own.set_keep_alive(true);
      for (int i = 0; i < 3; ++i) {
        if (reader % 2 == 0) {
          const auto head = own.Head("/large.bin");
          ASSERT_TRUE(head);
          EXPECT_EQ(head->get_header_value("Content-Length"), std::to_string(large.size()));
          const auto got = own.Get("/large.bin");
          ASSERT_TRUE(got);
          EXPECT_EQ(got->status, 200);
          EXPECT_TRUE(got->body == large);
        } else {
          size_t read = 0;
          own.Get("/large.bin", [&](const char*, size_t count) {
            read += count;
            return read < 1'000'000;
          });
        }
      }
    }));
  }
  for (std::future<void>& reader : readers) reader.get();
}

}  // namespace
}  // namespace linnet::server
