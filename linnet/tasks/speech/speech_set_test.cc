#include "linnet/tasks/speech/speech_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/test_util.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Speech : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("linnet_speech_set_test." + std::to_string(getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string Write(const std::string& name, const std::string& text) {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
    return dir_ / name;
  }
  // Names of the phones of utterance i.
  static std::vector<std::string> Phones(const SpeechSet& set, size_t i) {
    std::vector<std::string> names;
    for (const int phone : set.utterances[i].phones) {
      names.push_back(set.phones[static_cast<size_t>(phone)]);
    }
    return names;
  }
  // Writes a small data set in AN4's layout: speakers s0 .. s19 with two recordings each, and a
  // test speaker. Returns its folder.
  std::string An4() {
    std::string ids, texts;
    for (int s = 0; s < 20; ++s) {
      for (const char* which : {"a", "b"}) {
        const std::string name = StrCat("an", which, "-s", s);
        ids += StrCat("an4_clstk/s", s, "/", name, "\n");
        texts += StrCat("<s> YES NO </s> (", name, ")\n");
        Write(StrCat("wav/an4_clstk/s", s, "/", name, ".flac"), "");
      }
    }
    Write("etc/an4.dic", "NO  N OW\nYES  Y EH S\nYES(2)  Y AH S\nHMM  SIL\n");
    Write("etc/an4_train.fileids", ids);
    Write("etc/an4_train.transcription", texts);
    Write("etc/an4_test.fileids", "an4test_clstk/t/x-t\n");
    Write("etc/an4_test.transcription", "NO (x-t)\n");
    Write("wav/an4test_clstk/t/x-t.sph", "");
    return dir_;
  }

  fs::path dir_;
};

TEST_F(Speech, DictionariesKeepFirstPronunciationsWithoutStress) {
  const auto dictionary = Pronunciations::Read(
      Write("d",
            ";;; a comment\n# another\nhello HH AH0 L OW1\nHELLO(2)  HH EH0 L OW1\n"
            "it's IH1 T S # a remark\n(paren  P\n"));
  EXPECT_EQ(dictionary.size(), 3u);
  EXPECT_THAT(*dictionary.Find("Hello"), ElementsAre("HH", "AH", "L", "OW"));
  EXPECT_THAT(*dictionary.Find("IT'S"), ElementsAre("IH", "T", "S"));
  EXPECT_EQ(dictionary.Find("bye"), nullptr);
  EXPECT_THAT(dictionary.Phones(), ElementsAre("AH", "HH", "IH", "L", "OW", "P", "S", "T"));
  EXPECT_THAT(ErrorOf([&] { Pronunciations::Read(Write("d", "ONE W AH N\n\nTWO\n")); }),
              HasSubstr("line 3"));
  EXPECT_THAT(ErrorOf([&] { Pronunciations::Read(Write("d", "\n")); }), HasSubstr("no words"));
}

TEST_F(Speech, An4HoldsOutEightSpeakers) {
  const std::string dir = An4();
  const SpeechSet train = LoadAn4(dir, SpeechSplit::kTrain),
                  validation = LoadAn4(dir, SpeechSplit::kValidation),
                  test = LoadAn4(dir, SpeechSplit::kTest);
  EXPECT_EQ(train.utterances.size(), 24u);
  EXPECT_EQ(validation.utterances.size(), 16u);
  EXPECT_EQ(test.utterances.size(), 1u);
  std::set<std::string> speakers, held;
  for (const Utterance& u : train.utterances) speakers.insert(u.speaker);
  for (const Utterance& u : validation.utterances) held.insert(u.speaker);
  EXPECT_EQ(held.size(), 8u);
  for (const std::string& speaker : held) EXPECT_FALSE(speakers.contains(speaker));
  EXPECT_THAT(train.phones, ElementsAre("EH", "N", "OW", "S", "Y"));  // SIL is not a phone
  EXPECT_EQ(validation.phones, train.phones);
  EXPECT_THAT(Phones(train, 0), ElementsAre("Y", "EH", "S", "N", "OW"));
  EXPECT_EQ(train.utterances[0].text, "YES NO");
  EXPECT_THAT(test.utterances[0].audio, HasSubstr("x-t.sph"));
  EXPECT_THAT(train.unknown_words, IsEmpty());
}

TEST_F(Speech, IncompleteAn4) {
  const std::string dir = An4();
  const auto error = [&](SpeechSplit split) { return ErrorOf([&] { LoadAn4(dir, split); }); };
  Write("etc/an4_test.transcription", "NO (y-t)\n");
  EXPECT_THAT(error(SpeechSplit::kTest), HasSubstr("has no transcription of"));
  Write("etc/an4_test.transcription", "NO\n");
  EXPECT_THAT(error(SpeechSplit::kTest), HasSubstr("line 1 names no recording"));
  Write("etc/an4_test.transcription", "WELL NO (x-t)\n");
  EXPECT_THAT(error(SpeechSplit::kTest), HasSubstr("no recording that can be used"));
  fs::remove(dir_ / "wav/an4_clstk/s3/ana-s3.flac");
  EXPECT_THAT(error(SpeechSplit::kTrain) + error(SpeechSplit::kValidation), HasSubstr("ana-s3"));
  EXPECT_THAT(ErrorOf([&] { LoadAn4(dir_ / "wav", SpeechSplit::kTest); }), HasSubstr("is not AN4"));
}

TEST_F(Speech, ManifestsTakeTextOrPhones) {
  const auto dictionary = Pronunciations::Read(Write("d", "NO N OW\nYES Y EH1 S\n"));
  const std::string path =
      Write("m.jsonl",
            "{\"audio\": \"a.wav\", \"text\": \"yes no\"}\n\n"
            "{\"audio\": \"b.wav\", \"phones\": \"aa0 N\", \"speaker\": \"anna\"}\n"
            "{\"audio\": \"c.wav\", \"text\": \"well well yes hm\"}\n");
  const SpeechSet set = LoadManifest(path, dictionary);
  ASSERT_EQ(set.utterances.size(), 2u);
  EXPECT_THAT(set.phones, ElementsAre("AA", "EH", "N", "OW", "S", "Y"));
  EXPECT_THAT(Phones(set, 0), ElementsAre("Y", "EH", "S", "N", "OW"));
  EXPECT_THAT(Phones(set, 1), ElementsAre("AA", "N"));
  EXPECT_EQ(set.utterances[1].speaker, "anna");
  EXPECT_EQ(set.utterances[0].audio, (dir_ / "a.wav").string());
  EXPECT_THAT(set.unknown_words, ElementsAre("HM", "WELL"));
  EXPECT_EQ(set.left_out, 1u);
  EXPECT_THAT(ErrorOf([&] {
                LoadManifest(path, dictionary, {"EH", "N", "OW", "S", "Y"});
              }),
              HasSubstr("line 3: the phone 'AA'"));
}

TEST_F(Speech, RefusesInvalidManifests) {
  const auto dictionary = Pronunciations::Read(Write("d", "NO N OW\n"));
  for (const auto& [line, fragment] : std::vector<std::pair<std::string, std::string>>{
           {"hello", "is not valid JSON"},
           {"[1]", "is not an object"},
           {"{\"text\": \"NO\"}", "no 'audio'"},
           {"{\"audio\": 3, \"text\": \"NO\"}", "'audio' is not a string"},
           {"{\"audio\": \"a\"}", "either 'text' or 'phones'"},
           {"{\"audio\": \"a\", \"text\": \"NO\", \"phones\": \"N\"}", "either"},
           {"{\"audio\": \"a\", \"text\": \"NO\", \"rate\": 1}", "'rate'"},
           {"{\"audio\": \"a\", \"text\": \"MAYBE\"}", "no utterance"}}) {
    const std::string path = Write("m.jsonl", line + "\n");
    const std::string error = ErrorOf([&] { LoadManifest(path, dictionary); });
    EXPECT_THAT(error, HasSubstr(fragment));
    EXPECT_THAT(error, HasSubstr("m.jsonl"));
  }
  EXPECT_THAT(
      ErrorOf([&] { LoadManifest(Write("m", "{\"audio\": \"a\", \"text\": \"NO\"}\n"), {}); }),
      HasSubstr("dictionary"));
}

// Skipped without the real data set.
TEST(An4, ReadsTheRealFiles) {
  const char* data = std::getenv("LINNET_DATA");
  const std::string dir = data ? std::string(data) + "/an4" : "";
  if (!An4Present(dir)) GTEST_SKIP() << "no AN4 in LINNET_DATA";
  const SpeechSet train = LoadAn4(dir, SpeechSplit::kTrain),
                  validation = LoadAn4(dir, SpeechSplit::kValidation),
                  test = LoadAn4(dir, SpeechSplit::kTest);
  EXPECT_EQ(train.phones.size(), 33u);
  EXPECT_EQ(train.utterances.size() + validation.utterances.size(), 948u);
  EXPECT_EQ(test.utterances.size(), 130u);
  EXPECT_THAT(train.unknown_words, IsEmpty());
  EXPECT_THAT(test.unknown_words, IsEmpty());
}

}  // namespace
}  // namespace linnet
