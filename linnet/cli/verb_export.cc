// linnet export: a linnet model for Python, under the reference library's names; or smaller, for the
// engine.
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/pytorch.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/checkpoint.h"
#include "linnet/runtime/narrow.h"

namespace linnet::cli {
namespace {

struct Options {
  std::string model, format, out;
  std::optional<Precision> precision;
  bool json = false;
};

// What of the model the reference library cannot compute, with these weights or any.
std::vector<std::string> BeyondReference(const ModelSpec& spec) {
  std::vector<std::string> beyond;
  if (spec.stack.norm_first) beyond.push_back("layer norms come first, with the same names");
  if (spec.input.pixel_above) beyond.push_back("above_embedding.weight is added to the value embedding");
  if (spec.input.positions != Positions::kSequence) beyond.push_back("pos_embedding.pe holds grid positions");
  const MixerSpec& attention = spec.stack.mixer();
  if (attention.kind == "kernel") {
    beyond.push_back(StrCat("attention kernel, similarity ", attention.similarity));
  } else if (attention.kind == "reformer" && attention.lsh_variant != LshVariant::kSimple) {
    beyond.push_back("reformer as published; its own is lsh_variant simple");
  } else if (attention.kind == "causal-linear" && attention.feature_map != "elu") {
    beyond.push_back(StrCat("feature map ", attention.feature_map, " as linnet has it"));
  }
  return beyond;
}

// A model for linnet itself.
void WriteSmaller(const Checkpoint& checkpoint, const Options& options) {
  WriteNarrowed(checkpoint, *options.precision, options.out);
  const auto bytes = std::filesystem::file_size(options.out);
  const auto before = std::filesystem::file_size(options.model);
  const char* precision = PrecisionName(*options.precision);
  if (options.json) {
    PrintJson({{"out", options.out},
               {"model", options.model},
               {"precision", precision},
               {"file_bytes", bytes},
               {"model_file_bytes", before}});
    return;
  }
  std::cout << options.out << ": matrices in " << precision << ", "
            << FormatBytes(static_cast<double>(bytes)) << " for "
            << FormatBytes(static_cast<double>(before)) << "\n";
}

void Run(const Options& options) {
  if (options.format.empty() && !options.precision) {
    throw InputError("say what to write: --format pth or safetensors for PyTorch, or --precision ",
                     "bf16 or int8 for a smaller model");
  }
  std::error_code ignored;
  if (std::filesystem::equivalent(options.model, options.out, ignored)) {
    throw InputError(options.out, ": is the model itself; choose another --out");
  }
  CheckWritable(options.out);
  const Checkpoint checkpoint = Checkpoint::Open(options.model);
  if (options.precision) return WriteSmaller(checkpoint, options);
  const ModelSpec& spec = checkpoint.spec();

  PyTorchWriter pytorch;
  SafetensorsWriter safetensors;
  size_t count = 0;
  for (const TensorInfo& info : TensorTable(spec)) {
    // Python's load_state_dict(strict=True) refuses what the reference does not know.
    if (info.name == "first_value.probability") continue;
    const float* data = checkpoint.Tensor(info.name).data();
    if (options.format == "pth") {
      pytorch.Add(info.name, DType::kF32, info.shape, data);
    } else {
      safetensors.Add(info.name, DType::kF32, info.shape, data);
    }
    ++count;
  }
  if (options.format == "pth") {
    pytorch.Write(options.out);
  } else {
    safetensors.SetMetadata("format", "pt");  // as PyTorch's users write it
    safetensors.SetMetadata("linnet.spec", ToJson(spec));
    safetensors.Write(options.out);
  }

  const std::vector<std::string> beyond = BeyondReference(spec);
  const auto bytes = std::filesystem::file_size(options.out);
  if (options.json) {
    PrintJson({{"out", options.out},
               {"model", options.model},
               {"format", options.format},
               {"tensors", count},
               {"file_bytes", bytes},
               {"heads", spec.stack.mixer().heads},
               {"activation", spec.stack.activation},
               {"attention", spec.stack.mixer().kind},
               {"spec", nlohmann::ordered_json::parse(ToJson(spec))},
               {"beyond_reference", beyond}});
    return;
  }
  std::cout << options.out << ": " << count << " tensors, "
            << FormatBytes(static_cast<double>(bytes)) << "\n  to build in Python: " << spec.stack.mixer().heads
            << " heads, activation " << spec.stack.activation << ", attention " << DescribeAttention(spec)
            << "\n";
  for (const std::string& line : beyond) {
    std::cout << "  not in the reference library: " << line << "\n";
  }
}

}  // namespace

void AddExport(CLI::App& app) {
  CLI::App* verb = AddVerb(
      app, "export", "Write a model for PyTorch, or a smaller one for linnet",
      "With --precision: a linnet model whose matrices are in bf16 or int8 (a scale an output);\n"
      "the engine runs it as it is. With --format, under the reference library's names:\n"
      "pth: a state_dict for torch.load(FILE). safetensors: for "
      "safetensors.torch.load_file(FILE);\n"
      "it also says what model it is, so 'linnet import' needs no options for it. Left out of\n"
      "both: how often the data begins with each byte, which the reference does not keep.",
      "  linnet export models/digits.safetensors --precision int8 --out digits-int8.safetensors\n"
      "  linnet export models/digits.safetensors --format pth --out digits.pth\n"
      "  linnet export models/digits.safetensors --format safetensors --out "
      "digits-plain.safetensors\n");
  auto options = std::make_shared<Options>();
  AddModelArgument(verb, options->model);
  CLI::Option* format =
      verb->add_option("--format", options->format, "For PyTorch: pth or safetensors")
          ->type_name("NAME")
          ->check(CLI::IsMember({"pth", "safetensors"}));
  verb->add_option_function<std::string>(
          "--precision",
          [options](const std::string& name) { options->precision = ParsePrecision(name); },
          "For linnet: f32, bf16 or int8")
      ->type_name("NAME")
      ->excludes(format);
  verb->add_option("--out", options->out, "The file to write")->type_name("FILE")->required();
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
