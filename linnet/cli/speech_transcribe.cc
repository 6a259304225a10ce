// linnet transcribe: prints the phones of recordings or of a live stream, with their times.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <span>

#include "linnet/base/units.h"
#include "linnet/base/utf8.h"
#include "linnet/cli/speech.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/program/program.h"
#include "linnet/speech.h"
#include "linnet/tasks/speech/audio.h"

namespace linnet::cli {
namespace {

using nlohmann::ordered_json;

struct TranscribeArguments {
  std::string model;
  std::vector<std::string> files;
  std::optional<Precision> precision;
  int threads = 0, beam = 1;
  bool causal = false, json = false;
};

std::string Show(const Phone& phone) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f ", phone.seconds);
  return text + phone.name;
}

ordered_json ToJson(const std::vector<Phone>& phones) {
  ordered_json list = ordered_json::array();
  for (const Phone& phone : phones) {
    list.push_back(
        {{"phone", phone.name}, {"seconds", phone.seconds}, {"probability", phone.probability}});
  }
  return list;
}

Audio Read(const std::string& file, int rate) {
  if (file != "-") return ReadAudio(file, rate);
  const std::string bytes{std::istreambuf_iterator<char>(std::cin), {}};
  return ParseAudio(std::as_bytes(std::span(bytes)), "standard input", rate);
}

// Prints a remark about a recording on stderr; stdout has only phones.
void Remark(const std::string& file, const std::string& text) {
  std::cout.flush();
  std::cerr << "linnet: " << Printable(file) << ": " << text << std::endl;
}

struct Tally {
  size_t failed = 0;
  double seconds = 0;  // of audio
};

void Whole(const TranscribeArguments& options, const std::shared_ptr<const Model>& model,
           Tally& tally, ordered_json& results) {
  Transcriber transcriber(model,
                          {.threads = options.threads, .beam = static_cast<size_t>(options.beam)});
  for (const std::string& file : options.files) {
    try {
      const Audio audio = Read(file, transcriber.sample_rate());
      Transcript heard;
      try {
        heard = transcriber.Transcribe(audio);
      } catch (const Error& error) {
        throw InputError(file, ": ", error.what());
      }
      tally.seconds += heard.seconds;
      SoundCheck check;
      check.Add(audio.samples);
      const std::vector<std::string> remarks = check.Remarks(audio.file_rate, audio.rate);
      if (options.json) {
        results.push_back({{"file", file},
                           {"seconds", heard.seconds},
                           {"log_probability", heard.log_probability},
                           {"remarks", remarks},
                           {"phones", ToJson(heard.phones)}});
        continue;
      }
      for (const std::string& remark : remarks) Remark(file, remark);
      std::cout << Printable(file) << ":";
      for (const Phone& phone : heard.phones) std::cout << "  " << Show(phone);
      std::cout << "\n" << std::flush;
    } catch (const Error& error) {
      ++tally.failed;
      std::cout.flush();
      std::cerr << "linnet: " << Printable(error.what()) << std::endl;
      if (options.json) results.push_back({{"file", file}, {"error", error.what()}});
    }
  }
}

void PrintLine(const ordered_json& object) {
  std::cout << EscapeControls(object.dump(-1, ' ', false, ordered_json::error_handler_t::replace))
            << "\n";
}

// Prints phones as they are recognized, one per line (with --json, one object per line).
void AsItArrives(const TranscribeArguments& options, const std::shared_ptr<const Model>& model,
                 Tally& tally) {
  const bool several = options.files.size() > 1;
  for (const std::string& file : options.files) {
    try {
      PhoneStream stream(model);
      AudioReader reader(file, model->spec().speech()->sample_rate);
      const auto print = [&](const std::vector<Phone>& phones) {
        for (const Phone& phone : phones) {
          if (options.json) {
            PrintLine({{"file", file},
                       {"phone", phone.name},
                       {"seconds", phone.seconds},
                       {"probability", phone.probability}});
          } else {
            std::cout << (several ? Printable(file) + ":  " : "") << Show(phone) << "\n";
          }
        }
        if (!phones.empty()) std::cout << std::flush;
      };
      // Reads a tenth of a second at a time, a delay that a listener does not notice.
      std::vector<float> piece(static_cast<size_t>(model->spec().speech()->sample_rate / 10));
      SoundCheck check;
      while (const size_t count = reader.Read(piece)) {
        check.Add(std::span(piece).first(count));
        print(stream.Read(std::span(piece).first(count)));
      }
      print(stream.Finish());
      for (const std::string& remark :
           check.Remarks(reader.file_rate(), model->spec().speech()->sample_rate)) {
        Remark(file, remark);
      }
      tally.seconds += stream.seconds();
    } catch (const Error& error) {
      ++tally.failed;
      if (options.json) PrintLine({{"file", file}, {"error", error.what()}});
      std::cout.flush();
      std::cerr << "linnet: " << Printable(error.what()) << std::endl;
    }
  }
}

void Run(const TranscribeArguments& options) {
  const auto model = OpenModel(options.model, kSpeechTask, "transcribe", {options.precision});
  Tally tally;
  ordered_json results = ordered_json::array();
  const Stopwatch watch;
  if (options.causal) {
    PhoneStream check(model);  // throws early if the model cannot stream
    if (options.beam > 1) {
      throw InputError(
          "--causal prints phones as they are detected, but --beam needs the whole recording; give "
          "only one of them");
    }
    AsItArrives(options, model, tally);
  } else {
    Whole(options, model, tally, results);
    if (options.json) PrintJson(results);
  }
  const double seconds = watch.Seconds();
  if (!options.json && isatty(STDERR_FILENO) == 1 && tally.seconds > 0) {
    std::cout.flush();
    std::cerr << "transcribed " << FormatSeconds(tally.seconds) << " of sound in "
              << FormatSeconds(seconds) << "\n";
  }
  if (tally.failed > 0) {
    throw InputError(tally.failed, " of ", options.files.size(),
                     " recordings could not be transcribed");
  }
}

}  // namespace

void AddSpeechTranscribe(CLI::App& app) {
  CLI::App* verb = AddVerb(
      app, "transcribe", "Transcribe recordings to phones with their times",
      R"(Reads WAV, FLAC and uncompressed NIST SPHERE; '-' is standard input. Averages the channels,
and resamples recordings to the model's sample rate. Prints one line per recording: its name, then
pairs of a start time, in seconds, and a phone. If a recording cannot be read or is shorter than a
frame (25 ms), an error on stderr names the recording, the others are still transcribed, and the
exit code is 2. With --causal, sound is transcribed as it arrives, in constant memory (a pipe must
carry WAV), and each phone is printed on its own line as soon as it is detected; a recording shorter
than a frame then gives no phones and no error.)",
      "  linnet transcribe models/phones.safetensors yes.flac no.wav\n"
      "  linnet transcribe models/phones.safetensors --json *.flac\n"
      "  arecord -f S16_LE -r 16000 -t wav | linnet transcribe "
      "models/phones-causal.safetensors --causal -\n");
  auto options = std::make_shared<TranscribeArguments>();
  AddModelArgument(verb, options->model);
  verb->add_option("FILE", options->files, "Recordings; '-' for standard input")
      ->type_name("")
      ->required()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb->add_flag("--causal", options->causal,
                 "Transcribe sound as it arrives, with a causal model");
  AddOption(verb, "--beam", options->beam, "N",
            "Beam size of the CTC decoding (1: the most likely path); not with --causal",
            Between(1, 1000));
  AddPrecisionOption(verb, options->precision);
  AddThreadsOption(verb, options->threads);
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
