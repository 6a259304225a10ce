// linnet eval for speech models: the phone error rate over a corpus.
#include <iostream>

#include "linnet/cli/speech.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/program/program.h"
#include "linnet/tasks/speech/eval.h"

namespace linnet::cli {
namespace {

struct SpeechEvalArguments : SpeechEvalOptions {
  std::string model;
  std::optional<Precision> precision;
  int threads = 0, beam = 1;
  bool json = false;
};

void Run(const SpeechEvalArguments& options) {
  if (options.data.empty()) {
    throw InputError(options.model,
                     ": is a speech model; give AN4's folder or a manifest file with --data");
  }
  const auto model = OpenModel(options.model, kSpeechTask, "eval", {options.precision});
  Transcriber transcriber(model,
                          {.threads = options.threads, .beam = static_cast<size_t>(options.beam)});
  Evaluation result;
  const auto warn = [](const std::string& line) { std::cerr << "linnet: " << line << "\n"; };
  WithProgress("transcribing", [&](const auto& report) {
    result = EvalSpeech(options, transcriber, report, warn);
  });
  if (options.json) {
    nlohmann::ordered_json confusions = std::move(result.record["confusions"]);
    result.record.erase("confusions");
    result.record["beam"] = options.beam;
    AddIdentity(result.record, options.model, *model, transcriber.threads());
    result.record["confusions"] = std::move(confusions);  // last, because there are many
    return PrintJson(result.record);
  }
  std::cout << result.summary << "\n" << result.examples;
}

}  // namespace

void AddSpeechEval(CLI::App& app) {
  CLI::App* verb =
      AddVerb(app, "eval", "Measure the phone error rate of a speech model",
              "The error rate is the number of substitutions, insertions and deletions, divided by "
              "the number of\nphones in the correct transcripts.",
              "  linnet eval models/phones.safetensors --data data/an4\n"
              "  linnet eval models/phones.safetensors --data words.jsonl --dictionary cmudict\n");
  auto options = std::make_shared<SpeechEvalArguments>();
  AddModelArgument(verb, options->model);
  AddOption(verb, "--data", options->data, "PATH",
            "Folder of the AN4 corpus, or a manifest file (docs/speech.md)");
  AddOption(verb, "--split", options->split, "NAME", "Part of AN4: train, validation or test");
  AddOption(verb, "--dictionary", options->dictionary, "FILE",
            "Pronouncing dictionary for the manifest's words");
  AddOption(verb, "--limit", options->limit, "N", "Maximum number of utterances (default: all)",
            Between(1, 100'000'000));
  AddOption(verb, "--beam", options->beam, "N",
            "Beam size of the CTC decoding (1: the most likely path)", Between(1, 1000));
  AddPrecisionOption(verb, options->precision);
  AddThreadsOption(verb, options->threads);
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
