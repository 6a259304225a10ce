#include "linnet/server/snapshots.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "linnet/engine.h"
#include "linnet/error.h"
#include "linnet/runtime/test_util.h"
#include "linnet/server/batcher.h"
#include "linnet/server/test_util.h"

namespace linnet::server {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("linnet_server_test." + std::to_string(getpid()))) {
    fs::remove_all(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::shared_ptr<SnapshotFolder> FolderAt(const fs::path& path, double bytes = 1e9) {
  return std::make_shared<SnapshotFolder>(path, bytes);
}

std::shared_ptr<const Snapshot> Make(float value, bool outputs) {
  Engine engine(TestModel(), {.threads = 1});
  return std::make_shared<const Snapshot>(
      engine.NewState(1), std::vector<float>(outputs ? engine.output_size() : 0, value));
}

// A request gives the same bits alone, among other requests, and from snapshots.
TEST(Batcher, NeitherCompanyNorSnapshotsChangeABit) {
  const std::vector<size_t> lengths = {1, 7, 128, 129, 300, 513};
  std::map<size_t, std::vector<Tokens>> alone;
  std::map<size_t, std::vector<float>> outputs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    Batcher batcher(TestModel(), {.threads = 2, .sequences = 4});
    Gathered gathered;
    ASSERT_TRUE(batcher.Submit(gathered.Make(Prompt(lengths[i], i), 1, 20, i)));
    gathered.Wait();
    alone[i] = gathered.tokens_[i], outputs[i] = gathered.outputs_[i];
  }
  Batcher batcher(TestModel(), {.threads = 2, .sequences = 3, .queue = 100});
  for (const bool again : {false, true}) {
    Gathered gathered;
    for (size_t i = 0; i < lengths.size(); ++i) {
      ASSERT_TRUE(batcher.Submit(gathered.Make(Prompt(lengths[i], i), 1, 20, i)));
    }
    gathered.Wait();
    for (size_t i = 0; i < lengths.size(); ++i) {
      EXPECT_EQ(gathered.tokens_[i], alone[i]) << lengths[i];
      EXPECT_TRUE(gathered.outputs_[i] == outputs[i]) << lengths[i];
      // Prompts shorter than SnapshotOptions::from get no snapshot.
      EXPECT_EQ(gathered.known_[i], again && lengths[i] >= SnapshotOptions().from ? lengths[i] : 0);
    }
  }
  // This prompt shares its first 400 tokens with an earlier prompt, which has a snapshot after each
  // 128 tokens. So 384 tokens are known.
  Tokens prompt = Prompt(513, 5);
  prompt.resize(400), prompt.push_back(4);
  Gathered gathered;
  ASSERT_TRUE(batcher.Submit(gathered.Make(prompt, 1, 20, 0)));
  gathered.Wait();
  EXPECT_EQ(gathered.known_[0], 384u);
  Batcher fresh(TestModel(), {.threads = 1, .sequences = 1, .snapshots = {.bytes = 0}});
  Gathered cold;
  ASSERT_TRUE(fresh.Submit(cold.Make(prompt, 1, 20, 0)));
  cold.Wait();
  EXPECT_EQ(cold.known_[0], 0u);
  EXPECT_EQ(cold.outputs_[0], gathered.outputs_[0]);
}

// A conversation's prompt: the text of each of these nodes of a tree, one after another.
Tokens Conversation(const std::vector<uint64_t>& nodes) {
  Tokens prompt;
  for (const uint64_t node : nodes) {
    const Tokens text = Prompt(20 + node * 37 % 90, node);
    prompt.insert(prompt.end(), text.begin(), text.end());
  }
  return prompt;
}

// 64 conversations branch twice, from one beginning. The first of them that leaves another one's
// path keeps the state there, so all later ones read only what is their own, from the last multiple
// of kCutPositions on.
TEST(Batcher, BranchesOfAConversationReadTheirOwnTextOnly) {
  constexpr size_t kConversations = 64;
  const auto prompt = [](size_t wave, size_t i) {
    return Conversation({7, 10 + i % 2, 20 + i % 8, 1000 * (wave + 1) + i});
  };
  const auto shared = [](size_t i) {
    return Conversation({7, 10 + i % 2, 20 + i % 8}).size() / Engine::kCutPositions *
           Engine::kCutPositions;
  };
  Batcher batcher(TestModel(), {.threads = 2, .sequences = 16, .queue = 100});
  Batcher cold(
      TestModel(),
      {.threads = 2, .sequences = 16, .queue = 100, .snapshots = {.bytes = 0, .from = SIZE_MAX}});
  for (size_t wave = 0; wave < 3; ++wave) {
    Gathered warm, fresh;
    for (size_t i = 0; i < kConversations; ++i) {
      ASSERT_TRUE(batcher.Submit(warm.Make(prompt(wave, i), 1, 8, i)));
      ASSERT_TRUE(cold.Submit(fresh.Make(prompt(wave, i), 1, 8, i)));
    }
    warm.Wait(), fresh.Wait();
    for (size_t i = 0; i < kConversations; ++i) {
      EXPECT_EQ(warm.outputs_[i], fresh.outputs_[i]) << wave << " " << i;
      EXPECT_EQ(fresh.known_[i], 0u);
      if (wave == 2) {
        EXPECT_EQ(warm.known_[i], shared(i)) << i;
      }
    }
  }
}

// A prompt that continues an earlier one is read from the last multiple of kCutPositions in it.
TEST(Batcher, ALongerPromptContinuesTheShorterOne) {
  Batcher batcher(TestModel(), {.threads = 1, .sequences = 1});
  for (const size_t length : {50, 64, 65, 300}) {
    Tokens prompt = Prompt(length, length);
    Gathered gathered;
    ASSERT_TRUE(batcher.Submit(gathered.Make(prompt, 1, 1, 0)));
    gathered.Wait();
    for (const int32_t token : Prompt(40, 0)) prompt.push_back(token);
    ASSERT_TRUE(batcher.Submit(gathered.Make(prompt, 1, 1, 1)));
    gathered.Wait();
    EXPECT_EQ(gathered.known_[1], length / Engine::kCutPositions * Engine::kCutPositions);
  }
}

// Snapshots between branches are dropped before those where prompts part or end.
TEST(Snapshots, DropsThoseWithoutALikelyUseFirst) {
  const size_t one = Make(0, true)->state.bytes() + 4 * 18 + 4 * 256;
  Snapshots snapshots(TestModel(), {.bytes = 2.5 * static_cast<double>(one)});
  using Use = Snapshots::Use;
  snapshots.Keep(Prompt(128, 1), Make(1, false), Use::kLikely);
  snapshots.Keep(Prompt(256, 2), Make(2, false), Use::kSpare);
  snapshots.Keep(Prompt(128, 3), Make(3, false), Use::kLikely);
  EXPECT_EQ(snapshots.evictions(), 1u);
  EXPECT_EQ(snapshots.Find(Prompt(257, 2)).length, 0u);
  EXPECT_EQ(snapshots.Find(Prompt(129, 1)).length, 128u);
  EXPECT_EQ(snapshots.Find(Prompt(129, 3)).length, 128u);
  // Once used, it counts as likely.
  snapshots.Keep(Prompt(128, 4), Make(4, false), Use::kSpare);
  EXPECT_EQ(snapshots.Find(Prompt(129, 4)).length, 128u);
  snapshots.Keep(Prompt(128, 5), Make(5, false), Use::kLikely);
  EXPECT_EQ(snapshots.Find(Prompt(129, 4)).length, 128u);
}

TEST(Snapshots, StopsWherePromptsPartAndEnd) {
  Snapshots snapshots(TestModel(), {});
  const auto stops = [&](const Tokens& prompt) {
    std::string text;
    for (const Snapshots::Stop stop : snapshots.Find(prompt).stops) {
      text += std::to_string(stop.length) + (stop.use == Snapshots::Use::kSpare ? "? " : " ");
    }
    return text;
  };
  const Tokens first = Prompt(400, 1);
  EXPECT_EQ(stops(first), "128? 256? 384 ");
  Tokens second = first;
  second[200] = 2;
  EXPECT_EQ(stops(second), "128? 192 256? 384 ");
  EXPECT_EQ(stops({second.begin(), second.begin() + 224}), "128? ");
  EXPECT_EQ(stops(Prompt(31, 2)), "");
  EXPECT_EQ(stops(Prompt(32, 3)), "");  // its end needs no stop
  EXPECT_EQ(stops(Prompt(33, 4)), "32 ");
  snapshots.Keep(std::span(second).first(128), Make(1, false));
  EXPECT_EQ(stops(second), "256? 384 ");
}

TEST(Snapshots, ForgetsWhatWasUsedLeastRecently) {
  const size_t one = Make(0, true)->state.bytes() + 4 * 18 + 4 * 10;  // outputs, tokens
  Snapshots snapshots(TestModel(), {.bytes = 3.5 * static_cast<double>(one + 100)});
  for (size_t i = 0; i < 3; ++i) snapshots.Keep(Prompt(10, i), Make(static_cast<float>(i), true));
  EXPECT_EQ(snapshots.count(), 3u);
  // This use of prompt 0 makes prompt 1 the next to be dropped.
  EXPECT_EQ(snapshots.Find(Prompt(10, 0)).length, 10u);
  snapshots.Keep(Prompt(10, 3), Make(3, true));
  EXPECT_EQ(snapshots.count(), 3u);
  EXPECT_EQ(snapshots.Find(Prompt(10, 1)).length, 0u);
  for (const size_t i : {0, 2, 3}) {
    const auto found = snapshots.Find(Prompt(10, i));
    ASSERT_EQ(found.length, 10u);
    EXPECT_EQ(found.snapshot->outputs[0], static_cast<float>(i));
  }
  EXPECT_LE(snapshots.bytes(), 3.5 * static_cast<double>(one + 100));
  // A snapshot without outputs serves only longer prompts.
  snapshots.Keep(Prompt(128, 7), Make(7, false));
  EXPECT_EQ(snapshots.Find(Prompt(128, 7)).length, 0u);
  EXPECT_EQ(snapshots.Find(Prompt(129, 7)).length, 128u);
  EXPECT_EQ(snapshots.Find(Prompt(127, 7)).length, 0u);
}

TEST(Snapshots, OutliveTheProcessInAFolder) {
  const Folder folder;
  const auto options = [&] {  // of a process that begins
    return SnapshotOptions{.folder = FolderAt(folder.path()), .folder_from = 100};
  };
  Tokens prompt = Prompt(300, 1);
  Gathered cold, warm;
  {
    Batcher batcher(TestModel(), {.threads = 1, .sequences = 1, .snapshots = options()});
    ASSERT_TRUE(batcher.Submit(cold.Make(prompt, 1, 20, 0)));
    cold.Wait();
  }
  {
    Batcher batcher(TestModel(), {.threads = 1, .sequences = 1, .snapshots = options()});
    ASSERT_TRUE(batcher.Submit(warm.Make(prompt, 1, 20, 0)));
    warm.Wait();
    EXPECT_EQ(warm.known_[0], 300u);
    EXPECT_EQ(warm.outputs_[0], cold.outputs_[0]);
  }
  // Damaged files (cut in half, or with a flipped bit) are ignored and deleted. Another model's
  // files are not used.
  for (const bool cut : {true, false}) {
    size_t damaged = 0;
    for (const auto& file : fs::directory_iterator(folder.path())) {
      const size_t size = fs::file_size(file.path());
      if (cut) {
        fs::resize_file(file.path(), size / 2);
      } else {
        std::fstream bytes(file.path(), std::ios::binary | std::ios::in | std::ios::out);
        bytes.seekg(static_cast<std::streamoff>(size - 21));
        const char byte = static_cast<char>(bytes.get() ^ 1);
        bytes.seekp(static_cast<std::streamoff>(size - 21)).put(byte);
      }
      ++damaged;
    }
    EXPECT_EQ(damaged, 5u);  // states after 128, 256, 288 and 300 tokens, and outputs
    Gathered again;
    Batcher batcher(TestModel(), {.threads = 1, .sequences = 1, .snapshots = options()});
    ASSERT_TRUE(batcher.Submit(again.Make(prompt, 1, 20, 0)));
    again.Wait();
    EXPECT_EQ(again.known_[0], 0u);
    EXPECT_EQ(again.outputs_[0], cold.outputs_[0]);
  }
  Snapshots other(RandomModel("text", "character", 700, /*seed=*/12), options());
  EXPECT_EQ(other.Find(prompt).length, 0u);
  EXPECT_THROW(FolderAt("/proc/none"), Error);
}

TEST(Snapshots, KeepTheFolderWithinItsBounds) {
  const Folder folder;
  fs::create_directories(folder.path());
  std::ofstream(folder.path() / "thesis.state") << std::string(50'000, 'x');  // not a snapshot
  const SnapshotOptions options{.folder = FolderAt(folder.path(), 20'000), .folder_from = 1};
  Snapshots snapshots(TestModel(), options);
  // Another model's snapshots count as well.
  Snapshots other(RandomModel("text", "character", 700, /*seed=*/12), options);
  double most = 0;
  for (size_t i = 0; i < 60; ++i) {
    Snapshots& one = i % 2 == 0 ? snapshots : other;
    one.Keep(Prompt(10, i), Make(1, true));
    one.Flush();
    double bytes = 0;
    for (const auto& file : fs::directory_iterator(folder.path())) {
      if (file.path().stem() != "thesis") bytes += static_cast<double>(file.file_size());
    }
    most = std::max(most, bytes);
  }
  EXPECT_GT(most, 10'000);
  EXPECT_LE(most, 20'000);
  EXPECT_TRUE(fs::exists(folder.path() / "thesis.state"));
}

// Files that others put into the folder can neither hang the server nor fill its memory.
TEST(Snapshots, ReadRegularFilesOfTheirSizeOnly) {
  const Folder folder;
  const auto options = [&] {
    return SnapshotOptions{.folder = FolderAt(folder.path()), .folder_from = 1};
  };
  const Tokens prompt = Prompt(10, 0);
  const auto file = [&](const std::string& extension) {
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      if (entry.path().extension() == extension) return entry.path();
    }
    return fs::path();
  };
  // Each function puts a harmful file at the path.
  const std::vector<std::function<void(const fs::path&)>> plants = {
      [](const fs::path& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); },
      [](const fs::path& path) { fs::create_symlink("/dev/zero", path); },
      [](const fs::path& path) {
        std::ofstream(path).put('x');
        fs::resize_file(path, uint64_t{1} << 40);  // takes no room on the disk
      }};
  Engine engine(TestModel(), {.threads = 1});
  State state = engine.NewState(1);
  std::vector<float> outputs(engine.output_size());
  engine.Prefix(state, prompt, prompt.size(), outputs);
  for (const std::string extension : {".state", ".outputs"}) {
    for (const auto& plant : plants) {
      {
        Snapshots snapshots(TestModel(), options());
        snapshots.Keep(prompt, std::make_shared<const Snapshot>(state.Clone(), outputs));
        snapshots.Flush();
      }
      EXPECT_EQ(Snapshots(TestModel(), options()).Find(prompt).length, prompt.size());
      const fs::path path = file(extension);
      fs::remove(path);
      plant(path);
      EXPECT_EQ(Snapshots(TestModel(), options()).Find(prompt).length, 0u) << path;
      EXPECT_TRUE(file(".state").empty() && file(".outputs").empty());
    }
  }
}

TEST(Snapshots, SweepTheFolderOfKilledProcesses) {
  const Folder folder;
  fs::create_directories(folder.path());
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  const std::string name(64, 'a'), dead_number = std::to_string(dead),
                                   own_number = std::to_string(getpid());
  const auto write = [&](const std::string& file) { std::ofstream(folder.path() / file) << "x"; };
  // `earlier` is the file of an earlier process that had this process's id.
  const std::string orphan = name + ".state.tmp." + dead_number + ".1",
                    probe = "probe.tmp." + dead_number + ".23",
                    thesis = "thesis.tmp." + dead_number + ".1",
                    running = name + ".outputs.tmp." + own_number + ".4",
                    earlier = std::string(64, 'b') + ".outputs.tmp." + own_number + ".4";
  for (const std::string& file : {orphan, probe, thesis, running, earlier}) write(file);
  fs::last_write_time(folder.path() / earlier,
                      fs::file_time_type::clock::now() - std::chrono::minutes(30));
  Snapshots(TestModel(), {.folder = FolderAt(folder.path())});
  std::set<std::string> left;
  for (const auto& file : fs::directory_iterator(folder.path())) {
    left.insert(file.path().filename());
  }
  EXPECT_EQ(left, (std::set<std::string>{thesis, running}));
}

}  // namespace
}  // namespace linnet::server
