// linnet generate: prints the text of a language model while the model generates it.
#include <iostream>
#include <iterator>

#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/grammar.h"
#include "linnet/io/file.h"
#include "linnet/program/program.h"
#include "linnet/runtime/cuda/cuda_engine.h"
#include "linnet/tasks/text/text.h"

namespace linnet::cli {
namespace {

constexpr const char* kRepeats = "repeats";  // a value of --draft

struct GenerateArguments {
  std::string model, prompt;
  std::optional<std::string> draft, grammar, schema;
  TextOptions how;
  std::optional<uint64_t> seed;
  bool json = false;
  std::optional<Precision> precision;
  int threads = 0;
  DeviceKind device = DeviceKind::kCpu;
};

// The value of "ended_by" in the JSON.
const char* Name(TextEnd end) {
  switch (end) {
    case TextEnd::kTokens:
      return "length";
    case TextEnd::kStop:
      return "stop";
    case TextEnd::kEndToken:
      return "end";
    case TextEnd::kPositions:
      return "positions";
    case TextEnd::kReader:
      return "reader";
    case TextEnd::kGrammar:
      return "grammar";
  }
  return "";
}

// Returns the prompt that --prompt gives: the text itself, the content of FILE for @FILE, or
// standard input for "-".
std::string PromptOf(const std::string& given) {
  constexpr size_t kLimit = size_t{1} << 30;
  if (given == "-") {
    return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  }
  return given.starts_with('@') ? ReadFile(given.substr(1), kLimit) : given;
}

// The grammar that --grammar or --json-schema gives.
std::optional<Grammar> GrammarOf(const GenerateArguments& options) {
  const auto read = [](const std::string& path, auto parse) {
    constexpr size_t kLimit = size_t{1} << 20;
    const std::string text = ReadFile(path, kLimit);
    try {
      return parse(text);
    } catch (const InputError& error) {
      throw InputError(path, ": ", error.what());
    }
  };
  if (options.grammar && options.schema) {
    throw InputError("generate: --grammar and --json-schema exclude each other; give one of them");
  }
  if (options.grammar) return read(*options.grammar, Grammar::Parse);
  if (options.schema) return read(*options.schema, Grammar::OfJsonSchema);
  return {};
}

void Run(const GenerateArguments& options) {
  if (options.device == DeviceKind::kCuda) {
    throw InputError(CudaEngine::Built()
                         ? "generate: text does not run on a GPU yet (images do: linnet sample); "
                           "choose --device cpu"
                         : kNoCuda);
  }
  Engine engine(OpenModel(options.model, kTextTask, "generate", {options.precision}),
                {.threads = options.threads});
  TextWriter writer(engine);
  const std::string prompt = PromptOf(options.prompt);
  TextOptions how = options.how;
  std::optional<Engine> small;
  std::unique_ptr<Drafter> drafter;
  if (options.draft == kRepeats) {
    drafter = MakeRepeater();
  } else if (options.draft) {
    small.emplace(OpenModel(*options.draft, kTextTask, "generate"), EngineOptions{options.threads});
    drafter = MakeDrafter(*small, engine.model());
  }
  how.drafter = drafter.get();
  const std::optional<Grammar> grammar = GrammarOf(options);
  if (grammar) how.grammar = &*grammar;
  how.seed = options.seed ? *options.seed : DrawnSeed();
  if (!options.json && !options.seed && how.choice.temperature > 0) {
    std::cerr << "linnet: seed " << how.seed << "\n";
  }
  std::string text;
  if (!options.json) std::cout << prompt << std::flush;
  how.beyond_training = [](size_t trained) {
    std::cerr << "\nlinnet: the model was trained on " << trained
              << " positions; the text is now longer than any in training\n";
  };
  const TextEnd end = writer.Write(prompt, how, [&](std::string_view piece) {
    if (options.json) {
      text += piece;
    } else {
      std::cout << piece << std::flush;
    }
    return true;
  });
  if (options.json) {
    nlohmann::ordered_json record = {
        {"prompt", prompt}, {"text", text}, {"ended_by", Name(end)}, {"seed", how.seed}};
    if (options.draft) {
      record["drafted"] = writer.guessed(), record["accepted"] = writer.accepted();
    }
    PrintJson(record);
  } else {
    std::cout << "\n";
  }
}

}  // namespace

void AddGenerate(CLI::App& app) {
  CLI::App* verb = AddVerb(app, "generate", "Write text with a language model", "",
                           "  linnet generate runs/text 'ROMEO:'\n"
                           "  linnet generate runs/text/model.safetensors --temperature 0.7 "
                           "--top-p 0.9 --stop $'\\n\\n' --seed 3\n");
  auto options = std::make_shared<GenerateArguments>();
  AddModelArgument(verb, options->model);
  AddOption(
      verb, "-p,--prompt,PROMPT", options->prompt, "TEXT",
      "Beginning of the text; @FILE: the content of FILE; -: standard input (default: empty)");
  AddOption(verb, "-n,--max-tokens", options->how.tokens, "N", "Maximum number of tokens to write",
            Between(1, 1e9));
  // The name of --max-tokens in version 0.1.
  AddOption(verb, "--symbols", options->how.tokens, "N", "", Between(1, 1e9))->group("");
  AddChoiceOptions(verb, options->how.choice, options->seed, "");
  verb->add_option("--stop", options->how.stop, "End the text before this string; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  AddOption(verb, "--grammar", options->grammar, "FILE",
            "Write only text that fits the grammar in this file (GBNF notation)");
  AddOption(verb, "--json-schema", options->schema, "FILE",
            "Write only JSON that the schema in this file accepts; not with --grammar");
  AddOption(
      verb, "--draft", options->draft, "MODEL",
      StrCat("Speculative decoding: a smaller model with the same vocabulary guesses tokens, "
             "and the model checks several at a time. With '",
             kRepeats,
             "' in place of MODEL, the guesses are the tokens that followed an earlier occurrence "
             "of the last four tokens (prompt lookup). The text stays the same. Faster with a "
             "model larger than a core's own caches (megabytes), and with texts that repeat "
             "themselves; slower with smaller models"));
  AddOption(verb, "--draft-tokens", options->how.guesses, "N",
            "Maximum number of tokens that --draft guesses at a time", Between(1, 64))
      ->needs("--draft");
  AddPrecisionOption(verb, options->precision);
  AddThreadsOption(verb, options->threads);
  AddDeviceOption(verb, options->device);
  verb->get_option("--device")->description("Device: cpu; text models do not run on a GPU yet");
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
