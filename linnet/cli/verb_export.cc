// linnet export: writes a model for Python, with the tensor names of fast-transformers or
// flash-linear-attention, or a smaller model for linnet.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/io/pytorch.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/fla.h"
#include "linnet/program/program.h"
#include "linnet/runtime/narrow.h"

namespace linnet::cli {
namespace {

struct ExportArguments {
  std::string model, format, out;
  std::optional<Precision> precision;
  bool json = false;
};

// Properties of the model that fast-transformers lacks.
std::vector<std::string> BeyondFastTransformers(const ModelSpec& spec) {
  std::vector<std::string> beyond;
  const auto add = [&](bool lacks, const std::string& what) {
    if (lacks && std::find(beyond.begin(), beyond.end(), what) == beyond.end()) {
      beyond.push_back(what);
    }
  };
  const InputSpec& input = spec.input;
  add(spec.stack.norm_first,
      "layer norms come before attention and feed-forward, under the same names");
  add(spec.stack.norm == NormKind::kRms, "RMS norms, which have no bias");
  add(spec.stack.feed_forward == FeedForwardKind::kGated,
      "feed-forward blocks are gated by layers.N.gate.weight, without biases");
  add(spec.stack.feed_forward == FeedForwardKind::kShifted,
      "feed-forward blocks have a token shift, layers.N.shift, a squared relu and no biases");
  add(input.norm, "embedding_norm stands before the first layer");
  add(spec.stack.feed_forward == FeedForwardKind::kNone, "layers have no feed-forward blocks");
  add(!spec.head.bias, "the predictor has no bias");
  add(spec.stack.convolution > 0, "a convolution stands in front of each layer's attention");
  add(input.whole_pixels,
      "a position reads a pixel: embeddings have 257 rows for each color, to be summed, and the "
      "predictor has 10 outputs per component (linnet import does not read such a file)");
  add(input.pixel_above, "above_embedding.weight is added to the value embedding");
  add(input.positions == Positions::kGrid, "pos_embedding.pe holds grid positions");
  add(input.positions == Positions::kAdded, "pos_embedding.pe is added to the value embedding");
  add(spec.head.tied, "predictor.weight times sqrt(d_model) is the value embedding");
  add(spec.lstm(), "an LSTM, with the names of torch.nn.LSTM");
  add(spec.stack.pattern.size() > 1, "layers with different attention");
  if (spec.lstm()) return beyond;
  for (const MixerSpec& mixer : spec.stack.pattern) {
    const MixerInfo info = FindMixer(mixer.kind);
    const std::string lacks = info.beyond == nullptr ? "" : info.beyond(mixer);
    add(!lacks.empty(), lacks);
  }
  return beyond;
}

// Writes a model for linnet itself, with the matrices in the precision that --precision names.
void WriteSmaller(const Checkpoint& checkpoint, const ExportArguments& options) {
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
            << FormatBytes(static_cast<double>(bytes)) << " instead of "
            << FormatBytes(static_cast<double>(before)) << "\n";
}

// Writes a folder for flash-linear-attention.
void WriteFolder(const Checkpoint& checkpoint, const ExportArguments& options) {
  WriteFla(checkpoint, options.out);
  const bool tokens =
      checkpoint.spec().text() && checkpoint.spec().text()->unit == TextUnit::kToken;
  if (options.json) {
    return PrintJson({{"out", options.out}, {"model", options.model}, {"format", options.format}});
  }
  std::cout << options.out << ": config.json, model.safetensors"
            << (tokens ? ", tokenizer.json"
                       : "; no tokenizer.json, because the vocabulary is linnet's own")
            << "\n";
}

void Run(const ExportArguments& options) {
  if (options.format.empty() && !options.precision) {
    throw InputError(
        "--format or --precision is required: --format pth, safetensors or fla for Python, "
        "--precision ",
        "bf16 or int8 for a smaller model");
  }
  std::error_code ignored;
  if (std::filesystem::equivalent(options.model, options.out, ignored)) {
    throw InputError(options.out, ": is the model itself; choose another --out");
  }
  const bool folder = options.format == "fla";
  if (!folder) CheckWritable(options.out);
  const Checkpoint checkpoint = Checkpoint::Open(options.model);
  if (folder) return WriteFolder(checkpoint, options);
  if (options.precision) return WriteSmaller(checkpoint, options);
  const ModelSpec& spec = checkpoint.spec();
  const char* own = spec.input.stem.channels > 0 ? "a stem" : spec.patches() ? "patches" : nullptr;
  if (own != nullptr) {
    throw InputError(options.model, ": has ", own,
                     ", which fast-transformers lacks; export it with --precision");
  }

  PyTorchWriter pytorch;
  SafetensorsWriter safetensors;
  size_t count = 0;
  for (const TensorInfo& info : TensorTable(spec)) {
    // load_state_dict(strict=True) in Python refuses tensors that the module does not have.
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
    safetensors.SetMetadata("format", "pt");  // as PyTorch's writer sets it
    safetensors.SetMetadata("linnet.spec", ToJson(spec));
    safetensors.Write(options.out);
  }

  const std::vector<std::string> beyond = BeyondFastTransformers(spec);
  const MixerSpec& mixer = spec.stack.mixer();
  const auto bytes = std::filesystem::file_size(options.out);
  if (options.json) {
    PrintJson({{"out", options.out},
               {"model", options.model},
               {"format", options.format},
               {"tensors", count},
               {"file_bytes", bytes},
               {"heads", mixer.heads},
               {"activation", NameOf(spec.stack.activation)},
               {"attention", mixer.kind},
               {"softmax_temp", mixer.scale > 0 ? nlohmann::ordered_json(mixer.scale) : nullptr},
               {"spec", SpecJson(spec)},
               {"beyond_reference", beyond}});
    return;
  }
  std::cout << options.out << ": " << count << " tensors, "
            << FormatBytes(static_cast<double>(bytes)) << "\n";
  if (!spec.lstm()) {
    std::cout << "  to build in Python: " << mixer.heads << " heads, activation "
              << spec.stack.activation << ", attention " << DescribeAttention(spec)
              << (mixer.scale > 0 ? StrCat(", softmax_temp ", mixer.scale) : "") << "\n";
  }
  for (const std::string& line : beyond) {
    std::cout << "  not in fast-transformers: " << line << "\n";
  }
}

}  // namespace

void AddExport(CLI::App& app) {
  CLI::App* verb = AddVerb(
      app, "export", "Write a model for PyTorch, or for linnet with bf16 or int8 weights",
      R"(Give either --precision or --format. --precision writes a linnet model with weight matrices
in f32, bf16 or int8 (int8 has one scale per output). --format writes a model for Python:
  pth          a state_dict for torch.load(FILE), with fast-transformers' tensor names
  safetensors  the same for safetensors.torch.load_file(FILE); the file also has the model's
               configuration, so 'linnet import' needs no options for it
  fla          a folder for flash-linear-attention's from_pretrained(FOLDER); only for language
               models that this library supports (docs/from-flash-linear-attention.md)
pth and safetensors leave out the distribution of an image's first byte, which a Python module does
not have.)",
      R"(  linnet export models/digits.safetensors --precision int8 --out digits-int8.safetensors
  linnet export models/digits.safetensors --format pth --out digits.pth
  linnet export models/digits.safetensors --format safetensors --out digits-plain.safetensors
  linnet export gla.safetensors --format fla --out gla-340M
)");
  auto options = std::make_shared<ExportArguments>();
  AddModelArgument(verb, options->model);
  CLI::Option* format = AddOption(verb, "--format", options->format, "NAME",
                                  "Format for Python: pth, safetensors or fla; see below",
                                  CLI::IsMember({"pth", "safetensors", "fla"}));
  verb->add_option_function<std::string>(
          "--precision",
          [options](const std::string& name) { options->precision = ParsePrecision(name); },
          "Precision of the weight matrices: f32, bf16 or int8")
      ->type_name("NAME")
      ->excludes(format);
  verb->add_option("-o,--out", options->out, "The file to write; with --format fla, the folder")
      ->type_name("FILE")
      ->required();
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
