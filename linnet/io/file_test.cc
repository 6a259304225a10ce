#include "linnet/io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "linnet/io/test_util.h"

namespace linnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(MappedFile, MapsMovesAndKeepsAReplacedFile) {
  TempDir dir;
  const std::string path = dir / "a";
  WriteFileAtomically(path, "hello");
  MappedFile first(path);
  MappedFile second(std::move(first));
  EXPECT_TRUE(first.bytes().empty());
  WriteFileAtomically(path, "bye");
  EXPECT_EQ(AsText(second.bytes()), "hello");
  second = MappedFile(path);
  EXPECT_EQ(AsText(second.bytes()), "bye");
  WriteFileAtomically(path, "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
}

TEST(MappedFile, RefusesFoldersAndMissingFiles) {
  TempDir dir;
  const std::string missing = dir / "missing";
  EXPECT_EQ(ErrorOf([&] { MappedFile{missing}; }),
            StrCat("input: ", missing, ": no such file; check the path"));
  WriteFileAtomically(dir / "digits.bin", "x");
  EXPECT_THAT(ErrorOf([&] { MappedFile{dir / "digit.bin"}; }),
              HasSubstr("no such file; did you mean 'digits.bin'?"));
  std::filesystem::create_directory(dir / "models");
  EXPECT_EQ(ErrorOf([&] { MappedFile{dir / "model/a/b"}; }),
            StrCat("input: ", dir / "model/a/b: no such file; there is no folder ", dir / "model",
                   "; did you mean 'models'?"));
  EXPECT_THAT(ErrorOf([&] { MappedFile{""}; }), HasSubstr("name of the file is empty"));
  std::filesystem::create_symlink(missing, dir / "link");
  EXPECT_THAT(ErrorOf([&] { MappedFile{dir / "link"}; }), HasSubstr("a file that does not exist"));
  EXPECT_THAT(ErrorOf([&] { MappedFile{dir / "lin"}; }), HasSubstr("no such file; check"));
  EXPECT_THAT(ErrorOf([&] { MappedFile{dir.path()}; }), HasSubstr("a folder"));
  EXPECT_THAT(ErrorOf([&] { MappedFile{"/dev/null"}; }), HasSubstr("not a regular file"));
  const std::string pipe = dir / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);  // a pipe without a writer
  EXPECT_THAT(ErrorOf([&] { MappedFile{pipe}; }), HasSubstr("not a regular file"));
  if (geteuid() != 0) {  // root can read everything
    WriteFileAtomically(dir / "locked", "x");
    chmod((dir / "locked").c_str(), 0);
    EXPECT_THAT(ErrorOf([&] { MappedFile{dir / "locked"}; }), HasSubstr("Permission denied"));
  }
}

TEST(ReadRegularFile, RefusesLinksPipesAndDevices) {
  TempDir dir;
  const std::string path = dir / "a", link = dir / "link", pipe = dir / "pipe";
  WriteFileAtomically(path, "hello");
  EXPECT_EQ(ReadRegularFile(path, 5), "hello");
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile(path, 4); }), HasSubstr("larger than"));
  std::filesystem::create_symlink("/dev/zero", link);
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile(link, 5); }), HasSubstr("cannot be opened"));
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);  // a pipe without a writer
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile(pipe, 5); }), HasSubstr("not a regular file"));
  EXPECT_THAT(ErrorOf([&] { ReadRegularFile("/dev/zero", 5); }), HasSubstr("not a regular file"));
}

TEST(ReadFile, ReadsUpToTheLimit) {
  TempDir dir;
  std::string text(200001, 'x');
  text[150000] = '\0';
  WriteFileAtomically(dir / "a", text);
  EXPECT_EQ(ReadFile(dir / "a"), text);
  EXPECT_EQ(ReadFile(dir / "a", text.size()), text);
  EXPECT_THAT(ErrorOf([&] { ReadFile(dir / "a", text.size() - 1); }), HasSubstr("larger than"));
  EXPECT_THAT(ErrorOf([&] { ReadFile("/dev/zero", 1 << 20); }), HasSubstr("larger than"));
  EXPECT_THAT(ErrorOf([&] { ReadFile(dir.path()); }), HasSubstr("a folder"));
}

TEST(AtomicFile, LeavesTheOldFileUntilCommit) {
  TempDir dir;
  const std::string path = dir / "a";
  WriteFileAtomically(path, "old");
  {
    AtomicFile file(path);
    file.Write("new", 3);
    EXPECT_EQ(dir.Entries(), 2);
  }
  EXPECT_EQ(ReadFile(path), "old");
  EXPECT_EQ(dir.Entries(), 1);
  {
    AtomicFile file(path);
    file.Write("ne", 2);
    file.Write("w", 1);
    EXPECT_EQ(ReadFile(path), "old");
    file.Commit();
  }
  EXPECT_EQ(ReadFile(path), "new");
  EXPECT_EQ(dir.Entries(), 1);
}

TEST(AtomicFile, ThreadsThatReplaceOneFileDoNotMixTheirBytes) {
  TempDir dir;
  const std::string path = dir / "a";
  const auto write = [&](char letter) {
    for (int i = 0; i < 50; ++i) WriteFileAtomically(path, std::string(10'000 + letter, letter));
  };
  std::thread other(write, 'x');
  write('y');
  other.join();
  const std::string text = ReadFile(path);
  EXPECT_EQ(text, std::string(10'000 + text[0], text[0]));
  EXPECT_EQ(dir.Entries(), 1);
}

TEST(AtomicFile, LeavesNoFileIfASignalEndsTheProcess) {
  TempDir dir;
  {
    AtomicFile file(dir / "a");
    file.Write("half", 4);
    EXPECT_EQ(dir.Entries(), 1);
    RemoveTemporaryFiles();
    EXPECT_EQ(dir.Entries(), 0);
    EXPECT_THAT(ErrorOf([&] { file.Commit(); }), StartsWith("runtime: "));
  }
  for (int i = 0; i < 20; ++i) WriteFileAtomically(dir / "a", "whole");  // slots are released
  AtomicFile file(dir / "b");
  RemoveTemporaryFiles();
  EXPECT_EQ(dir.Entries(), 1);
}

TEST(AtomicFile, WritesThroughALink) {
  TempDir dir;
  WriteFileAtomically(dir / "a", "old");
  std::filesystem::create_symlink("a", dir / "link");
  WriteFileAtomically(dir / "link", "new");
  EXPECT_EQ(ReadFile(dir / "a"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
}

TEST(AtomicFile, RefusesUnwritableTargets) {
  TempDir dir;
  const auto write = [](const std::string& path) {
    return ErrorOf([&] { WriteFileAtomically(path, "x"); });
  };
  EXPECT_EQ(write(dir / "no/a"), StrCat("input: ", dir / "no/a", ": cannot be written: the folder ",
                                        dir / "no", " does not exist; create it first"));
  EXPECT_THAT(write(dir.path()), AllOf(StartsWith("input: "), HasSubstr("a folder")));
  EXPECT_THAT(write("/dev/null"), AllOf(StartsWith("input: "), HasSubstr("not a regular file")));
  WriteFileAtomically(dir / "a", "x");
  EXPECT_THAT(write(dir / "a/b"), AllOf(StartsWith("input: "), HasSubstr("Not a directory")));
  std::filesystem::create_symlink("nowhere", dir / "dangling");
  EXPECT_THAT(write(dir / "dangling"), HasSubstr("a link to nowhere"));
  if (geteuid() != 0) {  // root can write everywhere
    chmod(dir.path().c_str(), 0500);
    EXPECT_THAT(write(dir / "b"), AllOf(StartsWith("input: "), HasSubstr("Permission denied")));
    chmod(dir.path().c_str(), 0700);
  }
  EXPECT_EQ(dir.Entries(), 2);
}

// A limit on the file size simulates a full disk: write() stores a part, then fails.
TEST(AtomicFile, SurvivesAFullDisk) {
  TempDir dir;
  const std::string path = dir / "a";
  WriteFileAtomically(path, "old");

  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = ErrorOf([&] { WriteFileAtomically(path, std::string(100000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);

  EXPECT_THAT(message, AllOf(StartsWith("runtime: " + path), HasSubstr("after 4.10 kB")));
  EXPECT_EQ(ReadFile(path), "old");
  EXPECT_EQ(dir.Entries(), 1);
}

}  // namespace
}  // namespace linnet
