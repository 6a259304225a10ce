#include "linnet/cli/verbs.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <random>
#include <set>
#include <string>

#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"
#include "linnet/kernels/isa.h"
#include "linnet/model/checkpoint.h"
#include "linnet/program/program.h"

namespace linnet::cli {

CLI::App* AddVerb(CLI::App& app, const std::string& name, const std::string& summary,
                  const std::string& notes, const std::string& examples) {
  CLI::App* verb = app.add_subcommand(name, summary);
  verb->footer("\n" + (notes.empty() ? "" : notes + "\n\n") + "Examples:\n" + examples);
  return verb;
}

CLI::Option* AddModelArgument(CLI::App* verb, std::string& path) {
  return verb
      ->add_option("-m,--model,MODEL", path,
                   "The model: a .safetensors file, or the folder of a training run")
      ->type_name("")
      ->required()
      ->transform([](const std::string& path) { return ModelFile(path); }, "");
}

void AddSeedOption(CLI::App* verb, std::optional<uint64_t>& seed, const std::string& when) {
  verb->add_option("-s,--seed", seed, "Random seed (default: chosen at random and printed)" + when)
      ->type_name("N")
      ->check(IsNumber(/*may_be_negative=*/false));
}

uint64_t DrawnSeed() { return std::random_device()(); }

void AddChoiceOptions(CLI::App* verb, ChoiceOptions& choice, std::optional<uint64_t>& seed,
                      const std::string& when) {
  AddOption(verb, "--temperature", choice.temperature, "T",
            "Sampling temperature (0: always the most likely token)" + when, Between(0, 100));
  AddOption(verb, "--top-k", choice.top_k, "K",
            "Sample from the K most likely tokens only (0: all)" + when, Between(0, 1e6));
  AddOption(verb, "--top-p", choice.top_p, "P",
            "Sample from the most likely tokens only, up to this total probability" + when,
            Between(1e-6, 1));
  AddSeedOption(verb, seed, when);
}

void AddThreadsOption(CLI::App* verb, int& threads) {
  AddOption(verb, "-t,--threads", threads, "N", "Threads to use (0: every processor)",
            Between(0, 1024));
}

void AddDeviceOption(CLI::App* verb, DeviceKind& device) {
  AddEnumOption(verb, "--device", device, "Device: cpu, or cuda (an NVIDIA GPU)");
}

void AddJsonFlag(CLI::App* verb, bool& json) {
  verb->add_flag("--json", json, "Print JSON for machines, and nothing else, on stdout");
}

void AddPrecisionOption(CLI::App* verb, std::optional<Precision>& precision) {
  verb->add_option_function<std::string>(
          "--precision",
          [&precision](const std::string& name) { precision = ParsePrecision(name); },
          "Precision of the weights: f32, bf16 or int8 (default: the file's)")
      ->type_name("NAME");
}

nlohmann::ordered_json SpecJson(const ModelSpec& spec) {
  auto fields = nlohmann::ordered_json::parse(ToJson(spec));
  if (const TextSpec* text = spec.text(); text != nullptr && !text->tokenizer.empty()) {
    fields["tokenizer"] = StrCat(text->tokenizer.size(), " bytes");
  }
  return fields;
}

std::shared_ptr<const Model> OpenModel(const std::string& path, const Task& task,
                                       const std::string& verb, const ModelOptions& options) {
  auto model = Model::Open(path, options);
  CheckTask(*model, task, verb);
  return model;
}

void CheckWritable(const std::string& path) {
  if (path.empty()) throw InputError("the name of the output file is empty; give one");
  AtomicFile probe(path);
}

std::string DescribeAttention(const ModelSpec& spec) {
  std::string text;
  std::set<std::string> different;
  for (const MixerSpec& mixer : spec.stack.pattern) {
    text += (text.empty() ? "" : " | ") + Describe(mixer);
    different.insert(Describe(mixer));
  }
  return different.size() == 1 ? *different.begin() : text;
}

void PrintJson(const nlohmann::ordered_json& value) {
  // Paths are as the user typed them; they need not be UTF-8.
  std::cout << EscapeControls(value.dump(2, ' ', /*ensure_ascii=*/false,
                                         nlohmann::ordered_json::error_handler_t::replace))
            << "\n";
}

void AddIdentity(nlohmann::ordered_json& record, const std::string& file, const Model& model,
                 int threads) {
  record.update({{"model", file},
                 {"threads", threads},
                 {"isa", kernels::ActiveIsa()},
                 {"precision", PrecisionName(model.precision())}});
}

void WithProgress(const std::string& what,
                  FunctionRef<void(const FunctionRef<void(size_t, size_t)>& report)> work) {
  const bool terminal = isatty(STDERR_FILENO) == 1;
  ProgressLine line(std::cerr, terminal);
  const Stopwatch watch;
  const auto show = [&](size_t done, size_t total) {
    const double seconds = watch.Seconds();
    // Short work needs no progress; a log needs no line just before the end.
    if (seconds < 1 || (done == total && !terminal) || !line.Due()) return;
    const double rate = static_cast<double>(done) / seconds;
    line.Update(StrCat(what, " ", done, "/", total, ", ", FormatCount(rate), "/s, ",
                       FormatSeconds(static_cast<double>(total - done) / rate), " left"));
  };
  work(show);
}

}  // namespace linnet::cli
