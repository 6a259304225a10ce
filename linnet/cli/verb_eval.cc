// linnet eval: measures the quality of a model with the inference runtime.
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linnet/base/units.h"
#include "linnet/cli/image_options.h"
#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/model/checkpoint.h"
#include "linnet/program/program.h"
#include "linnet/tasks/task.h"

namespace linnet::cli {
namespace {

struct EvalArguments : EvalOptions {
  std::string model;
  std::optional<Precision> precision;
  int threads = 0;
  bool json = false;
  std::string dictionary;
  int beam = 1;
};

// Evaluates a speech model: replaces this process by linnet-speech, with the same options.
[[noreturn]] void EvalSpeech(const EvalArguments& options, const CLI::App& verb) {
  for (const char* flag : {"--show", "--seed", "--dataset", "--batch"}) {
    if (verb.count(flag) == 0) continue;
    throw InputError(options.model, ": is a speech model; leave out ", flag);
  }
  std::vector<std::string> arguments = {"eval", options.model};
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_positional() || option->count() == 0) continue;
    arguments.push_back(option->get_name());
    if (option->get_items_expected_max() > 0) arguments.push_back(option->results().back());
  }
  Become(kSpeechProgram, arguments);
}

void Run(const EvalArguments& options, const CLI::App& verb) {
  if (Checkpoint::Open(options.model).spec().ReadsFrames()) EvalSpeech(options, verb);
  if (!options.dictionary.empty() || options.beam > 1) {
    throw InputError(options.model, ": is not a speech model; leave out --dictionary and --beam");
  }
  const auto model = Model::Open(options.model, {options.precision});
  const auto task = FindTask(model->spec().task);
  if (!task || !task->evaluate) {
    throw InputError(model->path(), ": linnet eval has no measure for the task '",
                     model->spec().task, "'");
  }
  Engine engine(model, {.threads = options.threads});
  Evaluation result;
  WithProgress(task->evaluating,
               [&](const auto& report) { result = task->evaluate(options, engine, report); });
  if (options.json) {
    AddIdentity(result.record, options.model, *model, engine.threads());
    return PrintJson(result.record);
  }
  std::cout << result.examples << result.summary << " ("
            << FormatSeconds(result.record.at("seconds").get<double>()) << ")\n";
}

}  // namespace

void AddEval(CLI::App& app) {
  CLI::App* verb =
      AddVerb(app, "eval", "Evaluate a model on test data",
              R"(The measure depends on the model's task:
  images   bits/dim over a data set's images; with --json, also of each row of the images
  copy     accuracy of the copied tokens, over newly drawn sequences
  recall   accuracy of the recalled values, over newly drawn sequences
  text     bits per token over a text
  couplet  perplexity per character of second lines
  speech   phone error rate over the test set of the AN4 corpus, or over a manifest's recordings)",
              "  linnet eval models/digits.safetensors --data data/mnist\n"
              "  linnet eval models/digits.safetensors --data data/mnist --limit 100 --json\n"
              "  linnet eval runs/copy/model.safetensors --show 3\n"
              "  linnet eval runs/text/model.safetensors --data play.txt\n"
              "  linnet eval models/couplet.safetensors --data data/couplet/regulated-verse\n"
              "  linnet eval models/phones.safetensors --data data/an4\n");
  auto options = std::make_shared<EvalArguments>();
  AddModelArgument(verb, options->model);
  AddDatasetOptions(
      verb, options->from,
      "Data set: a folder; for text, a file; for speech, the AN4 corpus or a manifest file");
  AddOption(verb, "--limit", options->limit, "N",
            "Maximum number of images, windows of text, couplets or utterances (default: all); for "
            "copy and recall, the number of drawn sequences (default: 200 and 256)",
            Between(1, 100'000'000));
  AddBatchOption(verb, options->batch);
  AddOption(verb, "--seed", options->seed, "N", "Random seed of the sequences (copy, recall)",
            IsNumber(/*may_be_negative=*/false));
  AddOption(verb, "--show", options->show, "N",
            "Print the first N sequences and the model's answers (copy, recall)", Between(0, 1000));
  AddOption(verb, "--dictionary", options->dictionary, "FILE",
            "Pronouncing dictionary for the manifest's words (speech)");
  AddOption(verb, "--beam", options->beam, "N",
            "Beam size of the CTC decoding; 1: the most likely path (speech)", Between(1, 1000));
  AddPrecisionOption(verb, options->precision);
  AddThreadsOption(verb, options->threads);
  AddJsonFlag(verb, options->json);
  verb->callback([options, verb] { Run(*options, *verb); });
}

}  // namespace linnet::cli
