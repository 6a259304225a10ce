// linnet eval for models of speech: the phone error rate over a corpus.
#include <algorithm>
#include <cmath>
#include <iostream>

#include "linnet/base/error.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/units.h"
#include "linnet/base/utf8.h"
#include "linnet/cli/speech.h"
#include "linnet/cli/verbs.h"
#include "linnet/kernels/isa.h"
#include "linnet/tasks/speech/ctc.h"
#include "linnet/tasks/speech/speech_set.h"
#include "linnet/tasks/speech/transcriber.h"

namespace linnet::cli {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string model, data, split = "test", dictionary;
  std::optional<Precision> precision;
  size_t limit = 0;
  int threads = 0, beam = 1;
  bool json = false;
};

constexpr size_t kShownConfusions = 8;

SpeechSet Load(const Options& options, const ModelSpec& spec) {
  const std::vector<std::string> phones = PhonesOf(spec);
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
      throw InputError(options.model, ": its phones are not those of ", options.data);
    }
  } else {
    if (options.split != "test") {
      throw InputError("--split ", options.split, ": a manifest has no parts; leave it out");
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

void Run(const Options& options) {
  if (options.data.empty()) {
    throw InputError(options.model,
                     ": a model of speech; name AN4's folder or a manifest with --data");
  }
  const auto model = OpenModel(options.model, "speech", "eval", {options.precision});
  const SpeechSet set = Load(options, model->spec());
  Transcriber transcriber(model,
                          {.threads = options.threads, .beam = static_cast<size_t>(options.beam)});
  ErrorRate errors;
  std::vector<std::string> bad;
  double heard_seconds = 0, hearing = 0;
  size_t heard = 0;
  WithProgress("hearing", [&](const auto& report) {
    for (size_t i = 0; i < set.utterances.size(); ++i) {
      const Utterance& utterance = set.utterances[i];
      try {
        if (utterance.phones.empty()) throw InputError(utterance.audio, ": nothing is said in it");
        const Stopwatch watch;
        const Audio audio = ReadAudio(utterance.audio, transcriber.sample_rate());
        const Transcript transcript = transcriber.Transcribe(audio);
        hearing += watch.Seconds();
        heard_seconds += transcript.seconds;
        errors.Add(utterance.phones, transcript.classes);
        ++heard;
      } catch (const Error& error) {
        bad.push_back(error.what());
      }
      report(i + 1, set.utterances.size());
    }
  });
  for (const std::string& fault : bad) {
    std::cerr << "linnet: left out: " << Printable(fault) << "\n";
  }
  if (!set.unknown_words.empty()) {
    std::cerr << "linnet: left out " << set.left_out << " utterances: the dictionary does not have";
    for (const std::string& word : set.unknown_words) std::cerr << " " << Printable(word);
    std::cerr << "\n";
  }
  if (heard == 0) throw InputError(options.data, ": none of its recordings can be heard");
  const auto name = [&](int phone) {
    return phone < 0 ? std::string("-") : set.phones[static_cast<size_t>(phone)];
  };
  std::vector<std::pair<size_t, std::pair<int, int>>> confusions;
  for (const auto& [pair, count] : errors.confusions()) confusions.push_back({count, pair});
  std::stable_sort(confusions.begin(), confusions.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const double speed = heard_seconds / hearing;
  if (options.json) {
    ordered_json pairs = ordered_json::array();
    for (const auto& [count, pair] : confusions) {
      pairs.push_back({{"said", name(pair.first)}, {"heard", name(pair.second)}, {"count", count}});
    }
    PrintJson({{"phone_error_rate", errors.rate()},
               {"phones", errors.reference()},
               {"substitutions", errors.substitutions()},
               {"insertions", errors.insertions()},
               {"deletions", errors.deletions()},
               {"utterances", heard},
               {"left_out", bad.size() + set.left_out},
               {"seconds", heard_seconds},
               {"real_time_factor", hearing / heard_seconds},
               {"peak_memory", PeakMemory()},
               {"split", options.split},
               {"dataset", set.name},
               {"beam", options.beam},
               {"model", options.model},
               {"threads", transcriber.pool().size()},
               {"isa", kernels::ActiveIsa()},
               {"precision", PrecisionName(model->precision())},
               {"confusions", pairs}});
    return;
  }
  std::cout << StrCat("phone error rate ", std::round(errors.rate() * 1e4) / 100, "% of ",
                      errors.reference(), " phones in ", heard, " utterances of ", set.name,
                      An4Present(options.data) ? ", " + options.split : "", ": ",
                      errors.substitutions(), " substituted, ", errors.insertions(), " inserted, ",
                      errors.deletions(), " deleted (", FormatSeconds(heard_seconds),
                      " of sound at ", std::lround(speed), " times real time)\n");
  if (!confusions.empty()) std::cout << "most often";
  for (size_t i = 0; i < std::min(confusions.size(), kShownConfusions); ++i) {
    const auto& [count, pair] = confusions[i];
    std::cout << (i > 0 ? "," : "") << " ";
    if (pair.second < 0) {
      std::cout << name(pair.first) << " missed";
    } else if (pair.first < 0) {
      std::cout << name(pair.second) << " added";
    } else {
      std::cout << name(pair.first) << " heard as " << name(pair.second);
    }
    std::cout << " " << count << "x";
  }
  if (!confusions.empty()) std::cout << "\n";
}

}  // namespace

void AddSpeechEval(CLI::App& app) {
  CLI::App* verb =
      AddVerb(app, "eval", "Measure the phone error rate of a model of speech",
              "Substitutions, insertions and deletions over the phones that were said.",
              "  linnet eval models/phones.safetensors --data data/an4\n"
              "  linnet eval models/phones.safetensors --data words.jsonl --dictionary cmudict\n");
  auto options = std::make_shared<Options>();
  AddModelArgument(verb, options->model);
  verb->add_option("--data", options->data, "AN4's folder, or a manifest (docs/speech.md)")
      ->type_name("PATH");
  verb->add_option("--split", options->split, "Of AN4: train, validation or test")
      ->type_name("NAME")
      ->capture_default_str();
  verb->add_option("--dictionary", options->dictionary,
                   "Words and their phones, for a manifest's texts")
      ->type_name("FILE");
  verb->add_option("--limit", options->limit, "Only the first N utterances")
      ->type_name("N")
      ->check(Between(1, 100'000'000));
  verb->add_option("--beam", options->beam, "Weigh this many prefixes (1: the likeliest path)")
      ->type_name("N")
      ->check(Between(1, 1000))
      ->capture_default_str();
  AddPrecisionOption(verb, options->precision);
  AddThreadsOption(verb, options->threads);
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
