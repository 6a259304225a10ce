// linnet: the command-line program. It does not link heavy libraries such as libtorch, libcurl or
// Cairo. A verb that needs one replaces this process by a separate program (sibling.h).
#include <CLI/CLI.hpp>
#include <string_view>
#include <vector>

#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"
#include "linnet/program/program.h"

namespace {

// Turns `linnet help VERB` into `linnet VERB --help`. A null pointer ends the result.
std::vector<char*> WithHelpAsFlag(int argc, char** argv) {
  static char flag[] = "--help";
  std::vector<char*> arguments(argv, argv + argc);
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    arguments.erase(arguments.begin() + 1);
    arguments.push_back(flag);
  }
  arguments.push_back(nullptr);
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace linnet::cli;
  CLI::App app("Linear-attention transformers: train them like transformers, run them like RNNs.",
               "linnet");
  SetUp(app);
  AddSiblingVerb(app, "data", "Download a data set", kDataProgram);
  AddSiblingVerb(app, "train", "Train a model", kTrainProgram);
  AddSiblingVerb(app, "linearize", "Give a trained model another kind of attention", kTrainProgram);
  AddSiblingVerb(app, "plot", "Draw the curves of training runs", kPlotProgram);
  AddEval(app);
  AddSample(app);
  AddComplete(app);
  AddSiblingVerb(app, "transcribe", "Transcribe recordings to phones with their times",
                 kSpeechProgram);
  AddGenerate(app);
  AddCouplet(app);
  AddSiblingVerb(app, "serve", "Serve models over HTTP, with a web page", kServeProgram);
  AddBench(app);
  AddSiblingVerb(app, "reproduce", "Repeat an experiment of the paper 'Transformers are RNNs'",
                 kReproduceProgram);
  AddInfo(app);
  AddImport(app);
  AddExport(app);
  app.footer("\n'linnet help VERB' shows a verb's options and examples.");
  std::vector<char*> arguments = WithHelpAsFlag(argc, argv);
  return RunProgram(app, static_cast<int>(arguments.size()) - 1, arguments.data());
}
