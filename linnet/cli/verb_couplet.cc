// linnet couplet: generates second lines for a first line.
#include <cmath>
#include <iostream>

#include "linnet/base/utf8.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/program/program.h"
#include "linnet/tasks/couplet/couplet.h"

namespace linnet::cli {
namespace {

struct CoupletArguments {
  std::string model;
  std::vector<std::string> lines;
  CoupletOptions how = {.candidates = 5};
  std::optional<uint64_t> seed;
  bool draw = false, free = false, json = false;
  std::optional<Precision> precision;
  int threads = 0;
};

void Run(const CoupletArguments& options) {
  Engine engine(OpenModel(options.model, kCoupletTask, "couplet", {options.precision}),
                {.threads = options.threads});
  CoupletWriter writer(engine);
  CoupletOptions how = options.how;
  if (options.draw) {
    how.beam = 0;
    how.seed = options.seed ? *options.seed : DrawnSeed();
    if (!options.seed) std::cerr << "linnet: seed " << how.seed << "\n";
  }
  if (options.free && !options.draw) throw InputError("--free needs --draw");
  how.rules = !options.free;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const std::string& line : options.lines) {
    const std::vector<CoupletAnswer> answers = writer.Write(line, how);
    const std::vector<std::string> unknown = writer.Unknown(line);
    const auto score = [](const CoupletAnswer& answer) {
      return answer.log_probability / std::max<double>(1, static_cast<double>(answer.characters));
    };
    if (options.json) {
      nlohmann::ordered_json list = nlohmann::ordered_json::array();
      for (const CoupletAnswer& answer : answers) {
        list.push_back({{"text", answer.text},
                        {"score", score(answer)},
                        {"log_probability", answer.log_probability},
                        {"characters", answer.characters},
                        {"scores", answer.scores}});
      }
      results.push_back({{"first", line}, {"unknown", unknown}, {"answers", list}});
      continue;
    }
    if (!unknown.empty()) {
      std::string all;
      for (const std::string& character : unknown)
        all += (all.empty() ? "" : " ") + Printable(character);
      std::cerr << "the model does not know " << all << "\n";
    }
    if (options.lines.size() > 1) std::cout << Printable(line) << "\n";
    if (answers.empty()) std::cout << "(no second line keeps the rules)\n";
    for (const CoupletAnswer& answer : answers) {
      char text[32];
      std::snprintf(text, sizeof(text), "%6.2f", score(answer));
      std::cout << answer.text << "  " << text << "\n";
    }
  }
  if (options.json) PrintJson(results);
}

}  // namespace

void AddCouplet(CLI::App& app) {
  CLI::App* verb = AddVerb(
      app, "couplet", "Answer the first line of a Chinese couplet",
      R"(Prints candidates, each with its score: the mean log-probability of a character, in nats
(closer to 0 is more likely). Rules: A second line has as many characters as the first line and the
same punctuation at the same places. The other characters differ from the first line's character
at the same place. A second line repeats a character exactly where the first line repeats one.
Traditional characters that the model does not know are read in their simplified form.)",
      R"(  linnet couplet models/couplet.safetensors 海上明月
  linnet couplet models/couplet.safetensors --draw --temperature 0.8 --seed 7 春风又绿江南岸
)");
  auto options = std::make_shared<CoupletArguments>();
  AddModelArgument(verb, options->model);
  verb->add_option("LINE", options->lines, "First lines of couplets")
      ->type_name("")
      ->required()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  AddOption(verb, "-n,--count", options->how.candidates, "N", "Number of candidates",
            Between(1, 1000));
  AddOption(
      verb, "--beam", options->how.beam, "N",
      "Beam size of the search (1: greedy), and maximum number of candidates; unused with --draw",
      Between(1, 1000));
  verb->add_flag("--draw", options->draw,
                 "Sample candidates instead of searching for the most likely ones");
  verb->add_flag("--free", options->free, "With --draw: do not enforce the rules below");
  AddChoiceOptions(verb, options->how.choice, options->seed, "; needs --draw");
  AddPrecisionOption(verb, options->precision);
  AddThreadsOption(verb, options->threads);
  AddJsonFlag(verb, options->json);
  verb->callback([options, verb] {
    for (const char* name : {"--temperature", "--top-k", "--top-p", "--seed"}) {
      if (!options->draw && verb->get_option(name)->count() > 0) {
        throw InputError(name, " needs --draw");
      }
    }
    Run(*options);
  });
}

}  // namespace linnet::cli
