// Sets of spoken utterances with their phones: CMU's AN4 in its original layout, or a manifest.
//
//   SpeechSet train = LoadAn4("data/an4", SpeechSplit::kTrain);
//   train.phones                       // "AA", "AE", ...; Utterance::phones has indices into it
//   train.utterances[0].audio          // a file for ReadAudio()
//
// A manifest has one JSON object per line; paths are relative to the manifest's folder:
//
//   {"audio": "yes.flac", "text": "YES"}
//   {"audio": "no.wav", "phones": "N OW", "speaker": "anna"}
#ifndef LINNET_TASKS_SPEECH_SPEECH_SET_H_
#define LINNET_TASKS_SPEECH_SPEECH_SET_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace linnet {

// A dictionary in CMUdict's format: each line has a word and its phones. Further pronunciations,
// written WORD(2), are skipped; comments begin with ;;; or #. Words are case-insensitive. The
// stress of phones is removed (AH0 becomes AH).
class Pronunciations {
 public:
  Pronunciations() = default;
  // Throws InputError, naming the line, on a file that is missing or not a dictionary.
  static Pronunciations Read(const std::string& path);

  // The first pronunciation; null if the word is missing.
  const std::vector<std::string>* Find(const std::string& word) const;
  // Every phone that occurs, sorted.
  std::vector<std::string> Phones() const;
  size_t size() const { return words_.size(); }

 private:
  std::map<std::string, std::vector<std::string>> words_;  // in upper case
};

struct Utterance {
  std::string id = {}, speaker = {};  // speaker: empty if unknown
  std::string audio = {};             // path
  std::string text = {};              // the words spoken; empty if only the phones are known
  std::vector<int> phones = {};       // indices into SpeechSet::phones
};

struct SpeechSet {
  std::string name = {};
  std::vector<std::string> phones = {};  // sorted
  std::vector<Utterance> utterances = {};
  std::vector<std::string> unknown_words = {};  // not in the dictionary; sorted, without duplicates
  size_t left_out = 0;  // number of utterances left out because they have unknown words
};

// AN4 has no validation set. kValidation takes the utterances of eight of the 74 training speakers,
// at equal distances in the sorted list of names; kTrain takes those of the other speakers.
enum class SpeechSplit { kTrain, kValidation, kTest };

// Loads AN4 from a folder with etc/ (fileids, transcriptions, an4.dic) and wav/ (FLAC, NIST SPHERE
// or WAV). Throws InputError, naming the file, if something is missing or inconsistent.
SpeechSet LoadAn4(const std::string& dir, SpeechSplit split);
// Whether the folder has AN4's list of training recordings, etc/an4_train.fileids.
bool An4Present(const std::string& dir);

// Reads a manifest. `phones` lists the allowed phones in order, for example a model's; if it is
// empty, the allowed phones are those of the dictionary and the manifest, sorted. A phone of the
// manifest is kept as written if `phones` contains it; otherwise it is converted to upper case
// without stress. Throws InputError, naming the line, on invalid data.
SpeechSet LoadManifest(const std::string& path, const Pronunciations& dictionary,
                       const std::vector<std::string>& phones = {});

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_SPEECH_SET_H_
