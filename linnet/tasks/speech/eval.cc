#include "linnet/tasks/speech/eval.h"
#include "linnet/tasks/speech/audio.h"

#include <algorithm>
#include <cmath>

#include "linnet/base/peak_memory.h"
#include "linnet/base/progress.h"
#include "linnet/base/units.h"
#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/tasks/speech/ctc.h"
#include "linnet/tasks/speech/speech_set.h"

namespace linnet {
namespace {

using nlohmann::ordered_json;

constexpr size_t kShownConfusions = 8;

SpeechSet Load(const SpeechEvalOptions& options, const Model& model) {
  const std::vector<std::string> phones = PhonesOf(model.spec());
  SpeechSet set;
  if (An4Present(options.data)) {
    const std::pair<const char*, SpeechSplit> splits[] = {{"train", SpeechSplit::kTrain},
                                                          {"validation", SpeechSplit::kValidation},
                                                          {"test", SpeechSplit::kTest}};
    const auto* split = std::find_if(std::begin(splits), std::end(splits),
                                     [&](const auto& s) { return options.split == s.first; });
    if (split == std::end(splits)) {
      throw InputError("--split ", options.split, ": choose train, validation or test");
    }
    set = LoadAn4(options.data, split->second);
    if (set.phones != phones) {
      throw InputError(model.path(), ": its phones differ from those of ", options.data);
    }
  } else {
    if (options.split != "test") {
      throw InputError("--split ", options.split, ": a manifest has no splits; leave out --split");
    }
    set = LoadManifest(
        options.data,
        options.dictionary.empty() ? Pronunciations() : Pronunciations::Read(options.dictionary),
        phones);
  }
  if (options.limit > 0 && options.limit < set.utterances.size()) {
    set.utterances.resize(options.limit);
  }
  return set;
}

// The results of transcribing a set's recordings and comparing transcripts with reference phones.
struct Hearing {
  ErrorRate errors;
  size_t heard = 0;                            // number of transcribed utterances
  double audio_seconds = 0, work_seconds = 0;  // of the transcribed utterances
  std::vector<std::string> faults;             // error messages of the other utterances
};

Hearing Hear(const SpeechSet& set, Transcriber& transcriber, const EvalProgress& report) {
  Hearing hearing;
  for (size_t i = 0; i < set.utterances.size(); ++i) {
    const Utterance& utterance = set.utterances[i];
    try {
      if (utterance.phones.empty()) throw InputError(utterance.audio, ": its reference is empty");
      const Stopwatch watch;
      const Audio audio = ReadAudio(utterance.audio, transcriber.sample_rate());
      const Transcript transcript = transcriber.Transcribe(audio);
      hearing.work_seconds += watch.Seconds();
      hearing.audio_seconds += transcript.seconds;
      hearing.errors.Add(utterance.phones, transcript.classes);
      ++hearing.heard;
    } catch (const Error& error) {
      hearing.faults.push_back(error.what());
    }
    report(i + 1, set.utterances.size());
  }
  return hearing;
}

// Pairs of phones that were confused, the most frequent first: `pairs` as JSON records, `shown` as
// one line with the first kShownConfusions pairs.
struct Confusions {
  ordered_json pairs = ordered_json::array();
  std::string shown;
};

Confusions ConfusionsOf(const ErrorRate& errors, const std::vector<std::string>& phones) {
  const auto name = [&](int phone) {
    return phone < 0 ? std::string("-") : phones[static_cast<size_t>(phone)];
  };
  std::vector<std::pair<size_t, std::pair<int, int>>> by_count;
  for (const auto& [pair, count] : errors.confusions()) by_count.push_back({count, pair});
  std::stable_sort(by_count.begin(), by_count.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  Confusions all;
  for (const auto& [count, pair] : by_count) {
    const auto [said, heard_as] = std::pair(name(pair.first), name(pair.second));
    all.pairs.push_back({{"said", said}, {"heard", heard_as}, {"count", count}});
    if (all.pairs.size() > kShownConfusions) continue;
    all.shown += all.shown.empty() ? "most often " : ", ";
    all.shown += pair.second < 0  ? StrCat(said, " missed")
                 : pair.first < 0 ? StrCat(heard_as, " added")
                                  : StrCat(said, " heard as ", heard_as);
    all.shown += StrCat(" ", count, "x");
  }
  return all;
}

}  // namespace

Evaluation EvalSpeech(const SpeechEvalOptions& options, Transcriber& transcriber,
                      const EvalProgress& report,
                      const FunctionRef<void(const std::string& line)>& warn) {
  const SpeechSet set = Load(options, transcriber.model());
  const Hearing hearing = Hear(set, transcriber, report);
  const ErrorRate& errors = hearing.errors;
  for (const std::string& fault : hearing.faults) {
    warn("left out: " + Printable(fault));
  }
  if (!set.unknown_words.empty()) {
    std::string words;
    for (const std::string& word : set.unknown_words) words += " " + Printable(word);
    warn(StrCat("left out ", set.left_out, " utterances: the dictionary lacks", words));
  }
  if (hearing.heard == 0) throw InputError(options.data, ": none of its recordings is usable");
  const Confusions confusions = ConfusionsOf(errors, set.phones);
  return {.record = {{"phone_error_rate", errors.rate()},
                     {"phones", errors.reference()},
                     {"substitutions", errors.substitutions()},
                     {"insertions", errors.insertions()},
                     {"deletions", errors.deletions()},
                     {"utterances", hearing.heard},
                     {"left_out", hearing.faults.size() + set.left_out},
                     {"seconds", hearing.audio_seconds},
                     {"real_time_factor", hearing.work_seconds / hearing.audio_seconds},
                     {"peak_memory", PeakMemory()},
                     {"split", options.split},
                     {"dataset", set.name},
                     {"confusions", confusions.pairs}},
          .summary = StrCat(
              "phone error rate ", std::round(errors.rate() * 1e4) / 100, "% of ",
              errors.reference(), " phones in ", hearing.heard, " utterances of ", set.name,
              An4Present(options.data) ? ", " + options.split : "", ": ", errors.substitutions(),
              " substituted, ", errors.insertions(), " inserted, ", errors.deletions(),
              " deleted (", FormatSeconds(hearing.audio_seconds), " of audio at ",
              std::lround(hearing.audio_seconds / hearing.work_seconds), " times real time)"),
          .examples = confusions.shown.empty() ? "" : confusions.shown + "\n"};
}

}  // namespace linnet
