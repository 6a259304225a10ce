#include "linnet/tasks/speech/speech_set.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeldOut = 8;  // number of AN4's validation speakers

std::string Upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

std::vector<std::string> Words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// Calls body(line, number) for each non-blank line of a text file.
template <class Body>
void ForLines(const std::string& path, Body body) {
  std::istringstream in(ReadFile(path));
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string::npos) body(line, number);
  }
}

std::string WithoutStress(std::string phone) {
  if (phone.size() > 1 && phone.back() >= '0' && phone.back() <= '9') phone.pop_back();
  return phone;
}

// Converts texts to phones and phones to indices, and collects unknown words. The constructor keeps
// a reference to `phones`, which may still change until the first call of Indices().
class Indexer {
 public:
  explicit Indexer(const std::vector<std::string>& phones) : phones_(phones) {}

  // Appends the phones of the words to `phones`. Returns false if the dictionary lacks a word.
  bool Pronounce(const std::vector<std::string>& words, const Pronunciations& dictionary,
                 std::vector<std::string>& phones) {
    bool known = true;
    for (const std::string& word : words) {
      const auto* found = dictionary.Find(word);
      if (found == nullptr) {
        unknown_.insert(Upper(word));
        known = false;
      } else {
        phones.insert(phones.end(), found->begin(), found->end());
      }
    }
    return known;
  }

  // Throws InputError for an unknown phone; the message begins with `where`.
  std::vector<int> Indices(const std::vector<std::string>& phones, const std::string& where) const {
    std::vector<int> indices;
    for (const std::string& phone : phones) {
      const auto at = std::find(phones_.begin(), phones_.end(), phone);
      if (at == phones_.end()) {
        throw InputError(where, ": the phone ", Quote(phone), " is not one of the ", phones_.size(),
                         " known phones");
      }
      indices.push_back(static_cast<int>(at - phones_.begin()));
    }
    return indices;
  }

  std::vector<std::string> unknown() const { return {unknown_.begin(), unknown_.end()}; }

 private:
  const std::vector<std::string>& phones_;
  std::set<std::string> unknown_;
};

std::vector<std::string> Sorted(const std::set<std::string>& phones) {
  return {phones.begin(), phones.end()};
}

// The end of an error message: lists the first few words that the dictionary lacks.
std::string Missing(const std::vector<std::string>& words) {
  constexpr size_t kNamed = 5;
  std::string text = words.empty() ? "" : "; the dictionary lacks";
  for (size_t i = 0; i < std::min(words.size(), kNamed); ++i) {
    text += (i > 0 ? ", " : " ") + Printable(words[i]);
  }
  if (words.size() > kNamed) text += StrCat(" and ", words.size() - kNamed, " more");
  return text;
}

// The split's name in AN4's file names. Validation speakers are in the training files.
const char* Part(SpeechSplit split) { return split == SpeechSplit::kTest ? "test" : "train"; }

// The speaker of an id: "fash" for "an4_clstk/fash/an251-fash-b".
std::string SpeakerOf(const std::string& id) { return fs::path(id).parent_path().filename(); }

// The validation speakers, chosen from the speakers of `ids` as SpeechSplit describes.
std::set<std::string> HeldOut(const std::vector<std::string>& ids) {
  std::set<std::string> speakers, held;
  for (const std::string& id : ids) speakers.insert(SpeakerOf(id));
  const std::vector<std::string> sorted = Sorted(speakers);
  for (size_t i = 0; i < kHeldOut && sorted.size() > kHeldOut; ++i) {
    held.insert(sorted[sorted.size() * (2 * i + 1) / (2 * kHeldOut)]);
  }
  return held;
}

}  // namespace

Pronunciations Pronunciations::Read(const std::string& path) {
  Pronunciations dictionary;
  ForLines(path, [&](const std::string& line, size_t number) {
    if (line.starts_with(";;;") || line.starts_with("#")) return;
    std::vector<std::string> words = Words(line);
    if (words.size() < 2) {
      throw InputError(path, ": line ", number,
                       " is not a word followed by its phones: ", Quote(Printable(line)));
    }
    std::string word = Upper(words[0]);
    // Skips WORD(2), a further pronunciation.
    if (word.size() > 3 && word.back() == ')' && word.find('(') != std::string::npos) return;
    std::vector<std::string> phones;
    for (size_t i = 1; i < words.size(); ++i) {
      if (words[i] == "#") break;  // a comment
      phones.push_back(WithoutStress(words[i]));
      if (!IsPrintable(phones.back())) {
        throw InputError(path, ": line ", number, " has a phone with unprintable characters: ",
                         Quote(Printable(phones.back())));
      }
    }
    if (phones.empty()) {
      throw InputError(path, ": line ", number,
                       " is not a word followed by its phones: ", Quote(Printable(line)));
    }
    dictionary.words_.emplace(std::move(word), std::move(phones));
  });
  if (dictionary.words_.empty()) throw InputError(path, ": holds no words");
  return dictionary;
}

const std::vector<std::string>* Pronunciations::Find(const std::string& word) const {
  const auto found = words_.find(Upper(word));
  return found == words_.end() ? nullptr : &found->second;
}

std::vector<std::string> Pronunciations::Phones() const {
  std::set<std::string> phones;
  for (const auto& [word, of] : words_) phones.insert(of.begin(), of.end());
  return Sorted(phones);
}

bool An4Present(const std::string& dir) {
  std::error_code none;
  return fs::exists(fs::path(dir) / "etc" / "an4_train.fileids", none);
}

SpeechSet LoadAn4(const std::string& dir, SpeechSplit split) {
  const fs::path etc = fs::path(dir) / "etc";
  if (!An4Present(dir)) {
    throw InputError(dir,
                     ": is not AN4: it has no etc/an4_train.fileids; name the folder that has "
                     "etc/ and wav/");
  }
  const Pronunciations dictionary = Pronunciations::Read(etc / "an4.dic");
  const std::string fileids = etc / StrCat("an4_", Part(split), ".fileids");
  const std::string transcripts = etc / StrCat("an4_", Part(split), ".transcription");
  std::vector<std::string> ids;
  ForLines(fileids, [&](const std::string& line, size_t) { ids.push_back(Words(line)[0]); });

  // A line is, for example, "<s> YES </s> (an251-fash-b)". `texts` maps the name in parentheses to
  // the words.
  std::map<std::string, std::string> texts;
  ForLines(transcripts, [&](const std::string& line, size_t number) {
    const size_t open = line.rfind('('), close = line.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close < open) {
      throw InputError(transcripts, ": line ", number, " names no recording: ", Quote(line));
    }
    std::string text;
    for (const std::string& word : Words(line.substr(0, open))) {
      if (word.starts_with("<")) continue;
      text += (text.empty() ? "" : " ") + word;
    }
    texts[line.substr(open + 1, close - open - 1)] = text;
  });

  SpeechSet set{.name = "an4", .phones = dictionary.Phones()};
  std::erase(set.phones, "SIL");
  Indexer indexer(set.phones);
  const std::set<std::string> held =
      split == SpeechSplit::kTest ? std::set<std::string>() : HeldOut(ids);
  for (const std::string& id : ids) {
    const std::string speaker = SpeakerOf(id);
    if (split != SpeechSplit::kTest &&
        held.contains(speaker) != (split == SpeechSplit::kValidation)) {
      continue;
    }
    const auto text = texts.find(fs::path(id).filename());
    if (text == texts.end()) throw InputError(transcripts, ": has no transcription of ", Quote(id));
    Utterance utterance{.id = id, .speaker = speaker, .text = text->second};
    for (const char* ending : {".flac", ".sph", ".wav"}) {
      const fs::path path = fs::path(dir) / "wav" / (id + ending);
      std::error_code none;
      if (fs::exists(path, none)) utterance.audio = path;
    }
    if (utterance.audio.empty()) {
      throw InputError(dir, ": there is no wav/", id, ".flac, .sph or .wav, but ", fileids,
                       " lists it");
    }
    std::vector<std::string> phones;
    if (!indexer.Pronounce(Words(utterance.text), dictionary, phones)) {
      ++set.left_out;
      continue;
    }
    utterance.phones = indexer.Indices(phones, transcripts);
    set.utterances.push_back(std::move(utterance));
  }
  set.unknown_words = indexer.unknown();
  if (set.utterances.empty()) {
    throw InputError(fileids, ": names no recording that can be used", Missing(set.unknown_words));
  }
  return set;
}

SpeechSet LoadManifest(const std::string& path, const Pronunciations& dictionary,
                       const std::vector<std::string>& phones) {
  struct Line {
    Utterance utterance = {};
    std::vector<std::string> phones = {};
    std::string where = {};
  };
  SpeechSet set{.name = fs::path(path).filename()};
  Indexer indexer(set.phones);
  std::vector<Line> lines;
  std::set<std::string> used;
  ForLines(path, [&](const std::string& text, size_t number) {
    Line line{.where = StrCat(path, ": line ", number)};
    std::string fault;
    const nlohmann::json object = ParseJson(text, 4, fault);
    if (fault.empty() && !object.is_object()) fault = "is not an object";
    if (!fault.empty()) throw InputError(line.where, " ", fault);
    const auto word = [&](const char* field) -> std::string {
      if (!object.contains(field)) return "";
      if (!object[field].is_string()) {
        throw InputError(line.where, ": '", field, "' is not a string");
      }
      return object[field].get<std::string>();
    };
    for (const auto& [field, value] : object.items()) {
      if (field != "audio" && field != "text" && field != "phones" && field != "speaker") {
        throw InputError(line.where, ": unknown field ", Quote(field),
                         "; the fields are audio, text, phones and speaker");
      }
    }
    const std::string audio = word("audio");
    if (audio.empty()) throw InputError(line.where, ": names no 'audio'");
    if (object.contains("text") == object.contains("phones")) {
      throw InputError(line.where, ": give either 'text' or 'phones'");
    }
    line.utterance = {.id = audio, .speaker = word("speaker"), .text = word("text")};
    line.utterance.audio = fs::path(path).parent_path() / audio;
    for (const std::string& phone : Words(word("phones"))) {
      if (!IsPrintable(phone)) {
        throw InputError(line.where,
                         ": a phone with unprintable characters: ", Quote(Printable(phone)));
      }
      const bool as_it_is = std::find(phones.begin(), phones.end(), phone) != phones.end();
      line.phones.push_back(as_it_is ? phone : WithoutStress(Upper(phone)));
    }
    if (object.contains("text") && dictionary.size() == 0) {
      throw InputError(line.where, ": 'text' needs a dictionary of words and their phones");
    }
    if (!indexer.Pronounce(Words(line.utterance.text), dictionary, line.phones)) {
      ++set.left_out;
      return;
    }
    used.insert(line.phones.begin(), line.phones.end());
    lines.push_back(std::move(line));
  });
  set.phones = phones;
  if (phones.empty()) {
    for (const std::string& phone : dictionary.Phones()) used.insert(phone);
    set.phones = Sorted(used);
  }
  for (Line& line : lines) {
    line.utterance.phones = indexer.Indices(line.phones, line.where);
    set.utterances.push_back(std::move(line.utterance));
  }
  set.unknown_words = indexer.unknown();
  if (set.utterances.empty()) {
    throw InputError(path, ": holds no utterance that can be used", Missing(set.unknown_words));
  }
  return set;
}

}  // namespace linnet
