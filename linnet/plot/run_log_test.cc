#include "linnet/plot/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "linnet/io/file.h"
#include "linnet/io/test_util.h"

namespace linnet::plot {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kTwo =
    "{\"step\":10,\"seconds\":1.5,\"lr\":0.001,\"loss\":3.5,\"note\":\"warm\"}\n"
    "{\"step\":20,\"seconds\":3,\"lr\":0.001,\"loss\":null}\n"
    "{\"step\":20,\"seconds\":3,\"validation_loss\":2.25}\n";

TEST(ReadRunLog, MetricByMetric) {
  TempDir dir;
  WriteFileAtomically(dir / "metrics.jsonl", kTwo);
  for (const std::string& run : {dir.path(), dir / "metrics.jsonl"}) {
    const RunLog log = ReadRunLog(run);
    EXPECT_EQ(log.path, dir / "metrics.jsonl");
    EXPECT_EQ(log.records, 3u);
    EXPECT_EQ(log.first_step, 10);
    EXPECT_EQ(log.last_step, 20);
    ASSERT_EQ(log.tracks.size(), 3u);  // a note is not a metric
    EXPECT_EQ(log.tracks[0].name, "lr");
    EXPECT_EQ(log.tracks[1].name, "loss");
    EXPECT_THAT(log.tracks[1].step, ElementsAre(10, 20));
    EXPECT_THAT(log.tracks[1].seconds, ElementsAre(1.5, 3));
    EXPECT_EQ(log.tracks[1].value[0], 3.5);
    EXPECT_TRUE(std::isnan(log.tracks[1].value[1]));
    ASSERT_NE(log.Find("validation_loss"), nullptr);
    EXPECT_THAT(log.Find("validation_loss")->value, ElementsAre(2.25));
    EXPECT_EQ(log.Find("accuracy"), nullptr);
  }
}

TEST(ReadRunLog, ALineThatIsBeingWritten) {
  TempDir dir;
  const std::string last = R"({"step":30,"seconds":4,"loss":1e-2})";
  for (size_t size = 0; size <= last.size(); ++size) {
    WriteFileAtomically(dir / "metrics.jsonl", kTwo + last.substr(0, size));
    EXPECT_EQ(ReadRunLog(dir.path()).records, size == last.size() ? 4u : 3u) << size;
  }
}

TEST(ReadRunLog, RefusesWhatIsNoRecord) {
  TempDir dir;
  const std::string path = dir / "metrics.jsonl";
  for (const std::string line :
       {"{", "", "[1]", "3", "null", "{}", R"({"loss":1})", R"({"step":"1","loss":1})",
        R"({"step":-1,"loss":1})", R"({"step":1e300,"loss":1})", R"({"step":1,"loss":1e999})",
        R"({"step":1,"loss":NaN})", "\xff", R"({"step":1}{"step":2})"}) {
    WriteFileAtomically(path, kTwo + line + "\n" + kTwo);
    EXPECT_THAT(ErrorOf([&] { ReadRunLog(path); }), StartsWith("input: " + path + ":4: not a rec"))
        << line;
  }
  WriteFileAtomically(path, kTwo + std::string(100'000, '['));
  EXPECT_EQ(ReadRunLog(path).records, 3u);
  WriteFileAtomically(path, kTwo + std::string(100'000, '[') + "\n");
  EXPECT_THAT(ErrorOf([&] { ReadRunLog(path); }), HasSubstr(":4: not a rec"));
  WriteFileAtomically(path, kTwo + std::string("3"));  // valid JSON, so not an incomplete line
  EXPECT_THAT(ErrorOf([&] { ReadRunLog(path); }), HasSubstr(":4: not a rec"));
}

TEST(ReadRunLog, NothingToRead) {
  TempDir dir;
  EXPECT_THAT(ErrorOf([&] { ReadRunLog(dir / "no"); }), HasSubstr("no such run"));
  EXPECT_THAT(ErrorOf([&] { ReadRunLog(dir.path()); }),
              AllOf(HasSubstr("metrics.jsonl: no such file"), HasSubstr("linnet train")));
  for (const char* text : {"", "{\"step\":1"}) {
    WriteFileAtomically(dir / "metrics.jsonl", text);
    EXPECT_THAT(ErrorOf([&] { ReadRunLog(dir.path()); }), HasSubstr("no records yet"));
  }
  WriteFileAtomically(dir / "metrics.jsonl", "{\"step\":1}\n");
  EXPECT_THAT(ErrorOf([&] { ReadRunLog(dir.path()); }), HasSubstr("no metrics"));
  std::string many;
  for (int i = 0; i < 2000; ++i) many += StrCat("{\"step\":1,\"m", i, "\":1}\n");
  WriteFileAtomically(dir / "metrics.jsonl", many);
  EXPECT_THAT(ErrorOf([&] { ReadRunLog(dir.path()); }), HasSubstr(":1001: more than 1000"));
}

}  // namespace
}  // namespace linnet::plot
