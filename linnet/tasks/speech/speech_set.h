// Spoken sentences with their phones, from AN4's own layout or a manifest.
//
//   SpeechSet train = LoadAn4("data/an4", SpeechSplit::kTrain);
//   train.phones                       // "AA", "AE", ...: what numbers in an utterance stand for
//   train.utterances[0].audio          // a file for ReadAudio()
//
// A manifest has one JSON object a line, paths being relative to the manifest's folder:
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

// A dictionary in CMUdict's format: a word and its phones a line, further pronunciations as WORD(2),
// comments behind ;;; or #. Words are taken without regard to case, phones without their stress (AH0 is AH).
class Pronunciations {
 public:
  Pronunciations() = default;
  // Throws InputError, naming the line, on a file that is missing or no dictionary.
  static Pronunciations Read(const std::string& path);

  // The first pronunciation; null where the word is not there.
  const std::vector<std::string>* Find(const std::string& word) const;
  // Every phone that occurs, sorted.
  std::vector<std::string> Phones() const;
  size_t size() const { return words_.size(); }

 private:
  std::map<std::string, std::vector<std::string>> words_;  // in upper case
};

struct Utterance {
  std::string id = {}, speaker = {};  // speaker: empty where nothing says
  std::string audio = {};             // path
  std::string text = {};              // as it was given; may be empty
  std::vector<int> phones = {};       // indices into SpeechSet::phones
};

struct SpeechSet {
  std::string name = {};
  std::vector<std::string> phones = {};  // sorted
  std::vector<Utterance> utterances = {};
  // Words that the dictionary does not have, each once, sorted; and how many utterances were left out
  // for their sake.
  std::vector<std::string> unknown_words = {};
  size_t left_out = 0;
};

// AN4 has no validation set: eight of its 74 training speakers, spread over their sorted names, are held
// out as one.
enum class SpeechSplit { kTrain, kValidation, kTest };

// From a folder with etc/ (fileids, transcriptions, an4.dic) and wav/ (FLAC, NIST SPHERE or WAV).
// Throws InputError, naming the file, where something is missing or does not fit together.
SpeechSet LoadAn4(const std::string& dir, SpeechSplit split);
// Whether the folder holds such files.
bool An4Present(const std::string& dir);

// A manifest; with `phones`, those symbols and no others are allowed (a model's, in its order), else they
// are those of the dictionary and of the manifest. Phones are taken as they are where `phones` has them so,
// else in upper case and without stress. Throws InputError, naming the line, on what does not fit.
SpeechSet LoadManifest(const std::string& path, const Pronunciations& dictionary,
                       const std::vector<std::string>& phones = {});

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_SPEECH_SET_H_
