// linnet import: a model of the Python library fast-transformers becomes one of linnet.
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/base/version.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"
#include "linnet/io/pytorch.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/reference.h"
#include "linnet/tasks/images/images.h"
#include "linnet/tasks/task.h"

namespace linnet::cli {
namespace {

struct Options {
  std::string file, out, key, data, dataset;
  ReferenceChoices choices;
  std::vector<CLI::Option*> about_model;  // options that a file's own description makes idle
  std::vector<CLI::Option*> about_reformer;
  bool json = false;
};

// The tensors of either format, and the description that linnet export left beside them.
struct Source {
  std::optional<PyTorchFile> pytorch;
  std::optional<SafetensorsFile> safetensors;
  std::optional<ModelSpec> spec;

  const std::vector<Tensor>& tensors() const {
    return pytorch ? pytorch->tensors() : safetensors->tensors();
  }
};

// By its content; by its name where that is no file of either kind, for the message.
bool IsSafetensors(const std::string& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  uint64_t header = 0;  // its length, and then a JSON object
  if (bytes.size() > sizeof(header)) {
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (header <= bytes.size() - sizeof(header) && bytes[sizeof(header)] == std::byte{'{'}) {
      return true;
    }
  }
  const bool zip = bytes.size() >= 4 && std::memcmp(bytes.data(), "PK\3\4", 4) == 0;
  return !zip && std::filesystem::path(path).extension() == ".safetensors";
}

Source OpenSource(const Options& options) {
  Source source;
  if (!IsSafetensors(options.file)) {
    source.pytorch = PyTorchFile::Open(options.file, options.key);
    return source;
  }
  if (!options.key.empty()) {
    throw InputError(options.file,
                     ": a .safetensors file holds one set of tensors; leave out --key");
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
        throw InputError(options.file, ": says what model it is; leave out ", option->get_name());
      }
    }
  }
  return source;
}

// Sets the first byte's distribution; returns where it comes from.
std::string FirstValue(const Options& options, ReferenceModel& model) {
  const ModelSpec& spec = model.spec();
  if (options.data.empty() && !options.dataset.empty()) {
    throw InputError(
        "--dataset says what lies in the folder of --data; give both, or leave it out");
  }
  if (!spec.image()) {
    if (!options.data.empty()) {
      throw InputError(options.file, ": no model of images, so --data has no use; leave it out");
    }
    return "";
  }
  if (options.data.empty()) return model.has_first_value() ? "the file's own" : "uniform";
  const ImageSet images =
      LoadImagesFor(spec, {.dir = options.data, .name = options.dataset, .split = "train"});
  model.SetFirstValue(FirstByteDistribution(images));
  return StrCat(images.name, ": ", images.size(), " training images");
}

void Run(const Options& options) {
  std::error_code ignored;
  if (std::filesystem::equivalent(options.file, options.out, ignored)) {
    throw InputError(options.out, ": is the file to import; choose another --out");
  }
  for (const CLI::Option* option : options.about_reformer) {
    if (option->count() > 0 && options.choices.attention.kind != "reformer") {
      throw InputError(option->get_name(), " is of --attention reformer; leave it out");
    }
  }
  CheckWritable(options.out);
  const Source source = OpenSource(options);
  ReferenceModel model = source.spec
                             ? FromKnownSpec(source.tensors(), options.file, *source.spec)
                             : FromReference(source.tensors(), options.file, options.choices);
  const std::string first_value = FirstValue(options, model);
  const ModelSpec& spec = model.spec();

  nlohmann::ordered_json training = {
      {"imported_from", std::filesystem::path(options.file).filename().string()},
      {"linnet", LINNET_VERSION}};
  if (!first_value.empty()) training["first_value"] = first_value;
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  WriteCheckpoint(options.out, spec, training.dump(-1, ' ', false, replace),
                  [&](const TensorInfo& info) { return model.Tensor(info.name); });

  if (options.json) {
    PrintJson({{"out", options.out},
               {"from", options.file},
               {"key", source.pytorch ? source.pytorch->key() : ""},
               {"spec", nlohmann::ordered_json::parse(ToJson(spec))},
               {"parameters", ParameterCount(spec)},
               {"first_value", first_value.empty() ? nlohmann::ordered_json(nullptr)
                                                   : nlohmann::ordered_json(first_value)}});
    return;
  }
  std::cout << options.out << ": "
            << (spec.image() ? StrCat("images of ", spec.image()->width, " x ", spec.image()->height,
                                               spec.image()->channels == 3 ? " RGB" : "")
                                      : StrCat(spec.task, " of ", spec.input.vocabulary - 1, " symbols"))
            << ", " << spec.stack.layers() << " layers of " << spec.stack.d_model << ", " << spec.stack.mixer().heads
            << " heads, " << FormatCount(static_cast<double>(ParameterCount(spec)))
            << " parameters\n";
  if (!source.spec) {
    std::cout << "  not in the file, taken as said: activation " << spec.stack.activation
              << ", attention " << DescribeAttention(spec)
              << (spec.stack.norm_first ? ", norms first" : ", norms last") << "\n";
  }
  if (first_value == "uniform") {
    std::cout << "  the first byte of a new image: drawn uniformly; --data DIR measures it\n";
  } else if (!first_value.empty()) {
    std::cout << "  the first byte of a new image: as in " << first_value << "\n";
  }
}

}  // namespace

void AddImport(CLI::App& app) {
  CLI::App* verb = AddVerb(
      app, "import", "Make a linnet model of a PyTorch file with the reference library's names",
      "FILE is what torch.save(model.state_dict(), FILE) wrote, or a .safetensors file with the\n"
      "same names; nothing in it is run. Sizes come from its tensors, heads, activation and\n"
      "attention from the options: wrong ones give a model that predicts badly, not an error, so\n"
      "check with 'linnet eval'. docs/from-fast-transformers.md has the names.",
      "  linnet import model.pth --heads 8 --out model.safetensors\n"
      "  linnet import model.pth --heads 8 --activation gelu --data mnist/ --out m.safetensors\n"
      "  linnet import run.pth --key model_state --heads 4 --width 8 --height 8 --out "
      "m.safetensors\n");
  auto options = std::make_shared<Options>();
  const auto about = [&](CLI::Option* option) {
    options->about_model.push_back(option);
    return option;
  };
  verb->add_option("FILE", options->file, "A .pth file, or .safetensors")
      ->type_name("")
      ->required();
  verb->add_option("--out", options->out, "The model to write, a .safetensors file")
      ->type_name("FILE")
      ->required();
  verb->add_option("--key", options->key, "Which state_dict, where the file has several")
      ->type_name("NAME");
  about(verb->add_option("--heads", options->choices.heads, "Attention heads")
            ->type_name("N")
            ->check(Between(1, 1000)));
  about(verb->add_option("--activation", options->choices.activation, "Of the feed-forward blocks")
            ->type_name("NAME")
            ->check(CLI::IsMember({"relu", "gelu"}))
            ->capture_default_str());
  about(verb->add_option("--attention", options->choices.attention.kind, "The attention's kind")
            ->type_name("NAME")
            ->capture_default_str());
  const auto of_reformer = [&](CLI::Option* option) {
    options->about_reformer.push_back(about(option->capture_default_str()));
  };
  MixerSpec& attention = options->choices.attention;
  of_reformer(verb->add_option("--lsh-rounds", attention.lsh_rounds, "Of reformer: its rounds")
                  ->type_name("N")
                  ->check(Between(1, 64)));
  of_reformer(verb->add_option("--lsh-buckets", attention.lsh_buckets, "Twice its bits")
                  ->type_name("N")
                  ->check(Between(1, 65536)));
  of_reformer(verb->add_option("--lsh-chunk", attention.lsh_chunk, "Its chunk_size")
                  ->type_name("N")
                  ->check(Between(1, 1 << 20)));
  of_reformer(verb->add_option("--lsh-variant", attention.lsh_variant,
                               "simple: the reference's; published: linnet's own")
                  ->type_name("NAME")
                  ->check(CLI::IsMember({"simple", "published"})));
  about(
      verb->add_flag("--norm-first", options->choices.norm_first,
                     "Layer norms before attention and feed-forward; the reference has none such"));
  about(verb->add_option("--width", options->choices.width,
                         "Of the images, where they are not 28 x 28 or 32 x 32 RGB")
            ->type_name("N")
            ->check(Between(1, 65536)));
  about(verb->add_option("--height", options->choices.height, "Of the images")
            ->type_name("N")
            ->check(Between(1, 65536)));
  about(verb->add_option("--channels", options->choices.channels, "1 for gray, 3 for RGB")
            ->type_name("N")
            ->check(CLI::IsMember({1, 3})));
  verb->add_option("--data", options->data,
                   "A data set's folder: how often its training images begin with each byte")
      ->type_name("DIR");
  verb->add_option("--dataset", options->dataset, "The data set's name (default: by its files)")
      ->type_name("NAME");
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
