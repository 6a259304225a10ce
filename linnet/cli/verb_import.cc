// linnet import: converts models of the Python libraries fast-transformers and
// flash-linear-attention, and of RWKV-7.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "linnet/base/units.h"
#include "linnet/base/utf8.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/pytorch.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/fla.h"
#include "linnet/model/mixer.h"
#include "linnet/model/reference.h"
#include "linnet/model/rwkv.h"
#include "linnet/program/program.h"
#include "linnet/tasks/images/images.h"
#include "linnet/tasks/task.h"
#include "linnet/version.h"
#include "linnet/vocabulary.h"

namespace linnet::cli {
namespace {

// An option that applies to some attention kinds only.
struct KindOption {
  const CLI::Option* option;
  std::function<bool(const MixerInfo&)> takes;
};

struct ImportArguments {
  std::string file, out, key, data, dataset, characters, tokenizer;
  ReferenceChoices choices;
  std::vector<CLI::Option*> about_model;  // refused if FILE describes its model
  std::vector<KindOption> about_kind;     // refused for other attention kinds
  bool json = false;
};

// An opened .pth or .safetensors file, and the spec that linnet export wrote into it, if any.
struct Source {
  std::optional<PyTorchFile> pytorch;
  std::optional<SafetensorsFile> safetensors;
  std::optional<ModelSpec> spec;

  const std::vector<Tensor>& tensors() const {
    return pytorch ? pytorch->tensors() : safetensors->tensors();
  }
};

// Whether a file is to be read as safetensors. Decides by the content. If the content is neither
// safetensors nor a zip archive (.pth), decides by the extension; the reader of that format then
// reports the error.
bool IsSafetensors(const std::string& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  uint64_t header = 0;  // length of the header, a JSON object
  if (bytes.size() > sizeof(header)) {
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (header <= bytes.size() - sizeof(header) && bytes[sizeof(header)] == std::byte{'{'}) {
      return true;
    }
  }
  const bool zip = bytes.size() >= 4 && std::memcmp(bytes.data(), "PK\3\4", 4) == 0;
  return !zip && std::filesystem::path(path).extension() == ".safetensors";
}

Source OpenSource(const ImportArguments& options) {
  Source source;
  if (!IsSafetensors(options.file)) {
    source.pytorch = PyTorchFile::Open(options.file, options.key);
    return source;
  }
  if (!options.key.empty()) {
    throw InputError(options.file,
                     ": a .safetensors file has only one set of tensors; leave out --key");
  }
  source.safetensors = SafetensorsFile::Open(options.file);
  const auto& metadata = source.safetensors->metadata();
  if (metadata.count("linnet") > 0) {
    throw InputError(options.file, ": is a linnet model already; use it as it is");
  }
  if (const auto spec = metadata.find("linnet.spec"); spec != metadata.end()) {
    source.spec = FromJson(spec->second, options.file);
    for (const CLI::Option* option : options.about_model) {
      if (option->count() > 0) {
        throw InputError(options.file, ": contains the model's settings; leave out ",
                         option->get_name());
      }
    }
  }
  return source;
}

// Sets the distribution of an image's first byte. Returns a description of where the distribution
// comes from, or "" if the model is not an image model.
std::string FirstValue(const ImportArguments& options, ReferenceModel& model) {
  const ModelSpec& spec = model.spec();
  if (options.data.empty() && !options.dataset.empty()) {
    throw InputError("--dataset needs --data, the folder of the data set; give both or neither");
  }
  if (!spec.image()) {
    if (!options.data.empty()) {
      throw InputError(options.file, ": is not an image model; leave out --data");
    }
    return "";
  }
  if (options.data.empty()) return model.has_first_value() ? "the file's own" : "uniform";
  const ImageSet images =
      LoadImagesFor(spec, {.dir = options.data, .name = options.dataset, .split = "train"});
  model.SetFirstValue(FirstByteDistribution(images));
  return StrCat(images.name, ": ", images.size(), " training images");
}

// Throws InputError for an option that does not apply to the model's attention kind.
void CheckKindOptions(const ImportArguments& options) {
  const MixerInfo kind = FindMixer(options.choices.attention.kind);
  for (const auto& [option, takes] : options.about_kind) {
    if (option->count() == 0 || takes(kind)) continue;
    std::string kinds;
    for (const MixerInfo& other : Mixers()) {
      if (takes(other)) kinds += StrCat(kinds.empty() ? "" : " or ", other.name);
    }
    throw InputError(option->get_name(), " applies only to --attention ", kinds, "; leave it out");
  }
}

// The distinct characters of a UTF-8 file, in order of first appearance.
std::string DistinctCharacters(const std::string& path) {
  const std::string text = ReadFile(path);
  std::set<char32_t> seen;
  std::string characters;
  for (size_t at = 0; at < text.size();) {
    const std::optional<CodePoint> next = NextCodePoint(text, at);
    if (!next) throw InputError(path, ": is not UTF-8: byte ", at, " is invalid");
    if (seen.insert(next->value).second) characters += text.substr(at, next->bytes);
    at += next->bytes;
  }
  if (characters.empty()) throw InputError(path, ": is empty; it must hold the vocabulary");
  return characters;
}

ReferenceModel ReadModel(const ImportArguments& options, const Source& source) {
  if (source.spec) return FromKnownSpec(source.tensors(), options.file, *source.spec);
  ReferenceChoices choices = options.choices;
  choices.images = !options.data.empty();
  if (!options.characters.empty()) choices.characters = DistinctCharacters(options.characters);
  return FromReference(source.tensors(), options.file, choices);
}

void Print(const ImportArguments& options, const ReferenceModel& model, bool described,
           const std::string& first_value) {
  const ModelSpec& spec = model.spec();
  const StackSpec& stack = spec.stack;
  std::cout << options.out << ": " << DescribeTask(spec).front().second << ", " << stack.layers()
            << " layers of " << stack.d_model << ", "
            << (spec.lstm() ? "" : StrCat(stack.mixer().heads, " heads, "))
            << FormatCount(static_cast<double>(ParameterCount(spec))) << " parameters\n";
  if (!described) {
    const float scale = stack.mixer().scale;
    std::cout << "  not in the file, taken from the options: activation " << stack.activation
              << ", attention " << DescribeAttention(spec)
              << (scale > 0 ? StrCat(", softmax_temp ", scale) : "")
              << (stack.norm_first ? ", norms first" : ", norms last")
              << (spec.PositionDims() > 0 ? "" : StrCat(", a context of ", spec.input.max_length))
              << "\n";
  }
  if (model.adds_special_tokens()) {
    std::cout
        << "  special tokens: none in the file; linnet adds its own, which are never sampled\n";
    const bool open = options.choices.task.empty() && !spec.encoder_decoder() && !spec.head.tied;
    if (open && spec.text()->unit == TextUnit::kByte) {
      std::cout << "  256 outputs for 256 tokens: read as text; for a model of images, give "
                   "--task images\n";
    }
  }
  if (first_value == "uniform") {
    std::cout << "  the first byte of a new image: drawn uniformly; with --data DIR, drawn as in a "
                 "data set\n";
  } else if (!first_value.empty()) {
    std::cout << "  the first byte of a new image: as in " << first_value << "\n";
  }
}

nlohmann::ordered_json TrainingRecord(const ImportArguments& options) {
  const std::filesystem::path source(options.file);
  return {{"imported_from",
           (source.has_filename() ? source : source.parent_path()).filename().string()},
          {"linnet", LINNET_VERSION}};
}

std::string Dumped(const nlohmann::ordered_json& record) {
  return record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Reports the import of a language model whose files describe it: a folder, or an RWKV file. `from`
// has additional fields for the JSON record.
void PrintLanguageModel(const ImportArguments& options, const ModelSpec& spec, Precision precision,
                        const nlohmann::ordered_json& from) {
  if (options.json) {
    nlohmann::ordered_json record = {{"out", options.out}, {"from", options.file}};
    record.update(from);
    record.update({{"precision", PrecisionName(precision)},
                   {"spec", SpecJson(spec)},
                   {"parameters", ParameterCount(spec)}});
    return PrintJson(record);
  }
  const MixerSpec& mixer = spec.stack.mixer();
  std::cout << options.out << ": " << DescribeTask(spec).front().second << ", "
            << spec.stack.layers() << " layers of " << spec.stack.d_model << ", " << mixer.heads
            << " heads of " << DescribeAttention(spec) << ", "
            << FormatCount(static_cast<double>(ParameterCount(spec))) << " parameters in "
            << PrecisionName(precision) << "\n";
}

// Imports an RWKV model. Its tensors determine everything but the context length.
void RunRwkv(const ImportArguments& options, const Source& source) {
  int context = 4096;  // the context of the published models
  for (const CLI::Option* option : options.about_model) {
    if (option->count() == 0) continue;
    if (option->get_name() != "--context") {
      throw InputError(options.file, ": is an RWKV model, which its tensors describe; leave out ",
                       option->get_name());
    }
    context = options.choices.context;
  }
  if (!options.data.empty() || !options.dataset.empty()) {
    throw InputError(options.file, ": is a language model; leave out --data and --dataset");
  }
  const RwkvModel model = RwkvModel::Of(source.tensors(), options.file, context);
  model.Write(options.out, Dumped(TrainingRecord(options)));
  PrintLanguageModel(options, model.spec(), model.precision(),
                     {{"key", source.pytorch ? source.pytorch->key() : ""}});
  if (!options.json) {
    std::cout << "  the model reads and writes token numbers, no text\n";
  }
}

void RunFolder(const ImportArguments& options) {
  for (const CLI::Option* option : options.about_model) {
    if (option->count() > 0) {
      throw InputError(options.file, ": its config.json describes the model; leave out ",
                       option->get_name());
    }
  }
  if (!options.key.empty() || !options.data.empty() || !options.dataset.empty()) {
    throw InputError(options.file, ": is a language model; leave out --key, --data and --dataset");
  }
  CheckWritable(options.out);
  const FlaModel model = FlaModel::Open(options.file, options.tokenizer);
  const ModelSpec& spec = model.spec();
  model.Write(options.out, Dumped(TrainingRecord(options)));
  PrintLanguageModel(options, spec, model.precision(), {{"files", model.files()}});
  if (spec.text() == nullptr && !options.json) {
    std::cout << "  no tokenizer.json: the model reads and writes token numbers, no text; "
                 "--tokenizer FILE names one\n";
  }
}

void Run(const ImportArguments& options) {
  if (IsModelFolder(options.file)) return RunFolder(options);
  if (!options.tokenizer.empty()) {
    throw InputError("--tokenizer is for a folder with a config.json; leave it out");
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(options.file, ignored)) {
    throw InputError(options.file, ": is a folder without a config.json; give a file in it");
  }
  if (std::filesystem::equivalent(options.file, options.out, ignored)) {
    throw InputError(options.out, ": is the file to import; choose another --out");
  }
  CheckKindOptions(options);
  CheckWritable(options.out);
  const Source source = OpenSource(options);
  if (!source.spec && IsRwkv(source.tensors())) return RunRwkv(options, source);
  ReferenceModel model = ReadModel(options, source);
  const std::string first_value = FirstValue(options, model);
  const ModelSpec& spec = model.spec();

  nlohmann::ordered_json training = TrainingRecord(options);
  if (!first_value.empty()) training["first_value"] = first_value;
  if (model.adds_special_tokens()) {
    training["special_tokens"] = "added by the import: embeddings of zeros, never drawn";
  }
  WriteCheckpoint(options.out, spec, Dumped(training),
                  [&](const TensorInfo& info) { return model.Tensor(info.name); });

  if (options.json) {
    PrintJson({{"out", options.out},
               {"from", options.file},
               {"key", source.pytorch ? source.pytorch->key() : ""},
               {"spec", SpecJson(spec)},
               {"parameters", ParameterCount(spec)},
               {"special_tokens_added", model.adds_special_tokens()},
               {"first_value", first_value.empty() ? nlohmann::ordered_json(nullptr)
                                                   : nlohmann::ordered_json(first_value)}});
    return;
  }
  Print(options, model, source.spec.has_value(), first_value);
}

// Adds the options that describe the model's attention.
void AddAttentionOptions(CLI::App* verb, ImportArguments& options) {
  MixerSpec& attention = options.choices.attention;
  const auto about = [&](CLI::Option* option) {
    options.about_model.push_back(option);
    return option;
  };
  // For an option that applies only to the kinds that `takes` accepts.
  const auto of_kinds = [&](CLI::Option* option,
                            const std::function<bool(const MixerInfo&)>& takes) {
    options.about_kind.push_back({about(option), takes});
  };
  // For an option that sets a field listed in MixerInfo::options.
  const auto of_field = [&](CLI::Option* option, const std::string& field) {
    of_kinds(option, [field](const MixerInfo& kind) {
      return std::find(kind.options.begin(), kind.options.end(), field) != kind.options.end();
    });
  };
  const auto maps = [](const MixerInfo& kind) { return kind.maps; };
  const auto scales = [](const MixerInfo& kind) { return kind.scales; };

  about(verb->add_option("--attention", attention.kind, "Kind of attention")
            ->type_name("NAME")
            ->capture_default_str());
  of_kinds(
      verb->add_option("--feature-map", attention.feature_map,
                       "Feature map of linear attention (in Python, rff is RandomFourierFeatures)")
          ->type_name("NAME")
          ->capture_default_str(),
      maps);
  of_kinds(verb->add_option("--features", attention.features,
                            "Number of features of a random feature map (n_dims in Python)")
               ->type_name("N")
               ->check(Between(1, 1 << 16)),
           maps);
  of_kinds(verb->add_option("--softmax-temp", attention.scale,
                            "Factor of the scores q . k, softmax_temp in Python (default: "
                            "1 / sqrt(dimensions of q))")
               ->type_name("X")
               ->check(Between(1e-6, 1e5)),
           scales);
  of_field(verb->add_option("--lsh-rounds", attention.lsh_rounds,
                            "Number of hash rounds of the reformer (rounds in Python)")
               ->type_name("N")
               ->check(Between(1, 64))
               ->capture_default_str(),
           "lsh_rounds");
  of_field(verb->add_option("--lsh-buckets", attention.lsh_buckets,
                            "Number of hash buckets of the reformer (2 x bits in Python)")
               ->type_name("N")
               ->check(Between(1, 65536))
               ->capture_default_str(),
           "lsh_buckets");
  of_field(verb->add_option("--lsh-chunk", attention.lsh_chunk,
                            "Chunk size of the reformer, in positions (chunk_size in Python)")
               ->type_name("N")
               ->check(Between(1, 1 << 20))
               ->capture_default_str(),
           "lsh_chunk");
  of_field(AddEnumOption(verb, "--lsh-variant", attention.lsh_variant,
                         "Variant of the reformer: simple, as in fast-transformers, or published, "
                         "as in the paper"),
           "lsh_variant");
}

}  // namespace

void AddImport(CLI::App& app) {
  CLI::App* verb = AddVerb(
      app, "import", "Convert a model of fast-transformers, flash-linear-attention or RWKV-7",
      R"(FILE is a model of flash-linear-attention, RWKV-7 or fast-transformers, in these forms:

flash-linear-attention: a folder with config.json, safetensors and tokenizer.json, as the Python
function save_pretrained() writes it. Supported language models are gla, retnet, delta_net,
gated_deltanet, gated_deltaproduct, kda, hgrn and mamba2; some of the layers may have softmax
attention. No options are needed. Details are in docs/from-flash-linear-attention.md.

RWKV-7 (x070): a .pth file with tensors such as blocks.0.att.receptance.weight. No options are
needed. The model has no tokenizer: prompts and answers are token numbers.

fast-transformers: a .pth file written by torch.save(model.state_dict(), FILE), or a .safetensors
file with the same tensor names. No code in the file is run. Sizes come from the tensors; heads,
activation and attention come from the options. Wrong options give no error but a model that
predicts badly: check with 'linnet eval'. A vocabulary of 256 or 259 tokens is read as bytes: of
images if the head is a mixture of logistics or --task, --data or --width says so, otherwise of
text. If it consists of characters, give --characters. docs/from-fast-transformers.md lists the
tensor names.)",
      R"(  linnet import gla-340M --out gla.safetensors
  linnet import RWKV-x070-World-0.1B.pth --out rwkv.safetensors
  linnet import model.pth --heads 8 --out model.safetensors
  linnet import model.pth --heads 8 --activation gelu --data mnist/ --out m.safetensors
  linnet import run.pth --key model_state --heads 4 --width 8 --height 8 --out m.safetensors
  linnet import text.pth --heads 8 --characters vocabulary.txt --out text.safetensors
)");
  auto options = std::make_shared<ImportArguments>();
  ReferenceChoices& choices = options->choices;
  const auto about = [&](CLI::Option* option) { options->about_model.push_back(option); };
  verb->add_option("FILE", options->file,
                   "The model: a .pth file, a .safetensors file, or a folder")
      ->type_name("")
      ->required();
  verb->add_option("-o,--out", options->out, "The model to write, a .safetensors file")
      ->type_name("FILE")
      ->required();
  AddOption(verb, "--key", options->key, "NAME",
            "Name of the state_dict to read, if the file has several");
  AddOption(verb, "--tokenizer", options->tokenizer, "FILE",
            "A tokenizer.json for the model in a folder (default: the folder's own)");
  about(verb->add_option("--task", choices.task,
                         "Task of the model (default: inferred from the shapes)")
            ->type_name("NAME")
            ->check(CLI::IsMember(ReferenceTasks())));
  about(verb->add_option("--heads", choices.heads, "Number of attention heads")
            ->type_name("N")
            ->check(Between(1, 1000)));
  about(AddEnumOption(verb, "--activation", choices.activation,
                      "Activation of the feed-forward blocks"));
  AddAttentionOptions(verb, *options);
  about(verb->add_flag("--norm-first", choices.norm_first,
                       "Layer norms before attention and feed-forward (not in fast-transformers)"));
  about(verb->add_option("--characters", options->characters,
                         "UTF-8 text; its distinct characters, in order of appearance, are the "
                         "vocabulary (after linnet's 3 special tokens, if the model has them)")
            ->type_name("FILE"));
  about(verb->add_option("--context", choices.context,
                         "Training length of a model without a position table, in tokens "
                         "(default: 1024; RWKV-7: 4096)")
            ->type_name("N")
            ->check(Between(1, 1 << 24)));
  about(verb->add_option("--width", choices.width,
                         "Width of the images, in pixels; not needed for 28 x 28 gray and 32 x 32 "
                         "RGB images")
            ->type_name("N")
            ->check(Between(1, 65536)));
  about(verb->add_option("--height", choices.height, "Height of the images, in pixels")
            ->type_name("N")
            ->check(Between(1, 65536)));
  about(verb->add_option("--channels", choices.channels,
                         "Channels of the images: 1 for gray, 3 for RGB")
            ->type_name("N")
            ->check(CLI::IsMember({1, 3})));
  AddOption(verb, "--data", options->data, "DIR",
            "Folder of an image data set; the distribution of an image's first byte is taken from "
            "its training images");
  AddOption(verb, "--dataset", options->dataset, "NAME",
            "Name of an image data set (default: detected from its files)");
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
