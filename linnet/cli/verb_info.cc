// linnet info: describes a model file without running it.
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/kernels/isa.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/patches.h"
#include "linnet/program/program.h"
#include "linnet/state.h"

namespace linnet::cli {
namespace {

using nlohmann::ordered_json;

struct InfoArguments {
  std::string model;
  bool json = false, mixers = false;
};

// Limits on the training record in a model file: its bytes and its levels of nesting. Records that
// linnet writes stay below both.
constexpr size_t kMaxTraining = 64 << 10;
constexpr int kMaxDepth = 16;

// Returns a JSON value as text. JSON escapes stay, so that a hostile string cannot send control
// characters to the terminal. A string without escapes loses its quotes.
std::string Shown(const ordered_json& value) {
  if (value.is_number_float()) return StrCat(value.get<double>());
  const std::string text = EscapeControls(value.dump());
  const bool plain =
      value.is_string() && text.size() == value.get_ref<const std::string&>().size() + 2;
  return plain ? text.substr(1, text.size() - 2) : text;
}

// Prints free-form JSON (the training record) as "name value" lines, without empty values.
void PrintFields(const ordered_json& value, const std::string& name) {
  if (value.is_null() || value == ordered_json("")) return;
  if (value.is_object()) {
    for (const auto& [key, field] : value.items()) {
      PrintFields(field, (name.empty() ? "" : name + ".") + Shown(key));
    }
    return;
  }
  std::cout << "  " << std::left << std::setw(20) << name << " " << Shown(value) << "\n";
}

// Parses the training record. Returns null if there is none, or if it is unreadable; `fault` then
// says why.
ordered_json ParseTraining(const std::string& text, std::string& fault) {
  fault.clear();
  if (text.empty()) return nullptr;
  if (text.size() <= kMaxTraining) return ParseOrderedJson(text, kMaxDepth, fault);
  fault = "is larger than " + FormatBytes(kMaxTraining);
  return nullptr;
}

// Returns the bytes of a sequence's state, or null if the runtime keeps no state.
ordered_json StateBytesOf(const ModelSpec& spec, Precision precision) {
  if (StateKindOf(spec) == StateKind::kNone) return nullptr;
  return StateBytes(spec, precision);
}

template <class... Values>
void Line(const char* name, const Values&... values) {
  std::cout << "  " << std::left << std::setw(20) << name << " ";
  (std::cout << ... << values) << "\n";
}

void PrintTransformer(const ModelSpec& spec) {
  Line("attention", DescribeAttention(spec),
       spec.stack.convolution > 0
           ? StrCat(", convolutions over ", spec.stack.convolution, " positions")
           : "");
  const FeedForwardKind feed_forward = spec.stack.feed_forward;
  Line("layers", spec.stack.layers(), " of ", spec.stack.d_model, " (",
       feed_forward == FeedForwardKind::kNone
           ? "no feed-forward"
           : StrCat("feed-forward ", spec.stack.d_ff, ", ",
                    feed_forward == FeedForwardKind::kMlp ? NameOf(spec.stack.activation)
                                                          : NameOf(feed_forward)),
       spec.stack.norm == NormKind::kRms ? ", RMS norms" : ", norms",
       spec.stack.norm_first ? " first)" : " last)");
  Line("heads", spec.stack.mixer().heads, " of ", spec.stack.mixer().query_dim,
       spec.stack.mixer().value_dim == spec.stack.mixer().query_dim
           ? ""
           : StrCat(" (values: ", spec.stack.mixer().value_dim, ")"));
}

std::string DescribeState(const ModelSpec& spec, const ordered_json& info) {
  switch (StateKindOf(spec)) {
    case StateKind::kNone:
      return "none: the model reads whole utterances";
    case StateKind::kTokens:
      return StrCat("its tokens: '", spec.stack.mixer().kind,
                    "' has no recurrent form; each step reads all tokens again");
    case StateKind::kCache:
      return StrCat(FormatBytes(info["state_bytes"].get<double>()),
                    " per sequence: room for the keys and values of ",
                    PatchesBefore(spec, static_cast<size_t>(spec.input.max_length)),
                    spec.patches() ? " patches" : " positions; it grows if more are read");
    case StateKind::kConstant:
      return StrCat(FormatBytes(info["state_bytes"].get<double>()), " per sequence, at any length");
  }
  return "";
}

void PrintTable(const ModelSpec& spec, const ordered_json& info) {
  const auto line = [](const char* name, const auto&... value) { Line(name, value...); };
  const auto bytes = [&](const char* key) { return FormatBytes(info[key].get<double>()); };
  std::cout << info["model"].get<std::string>() << "\n";
  for (const auto& [name, value] : DescribeTask(spec)) Line(name.c_str(), value);
  if (spec.lstm()) {
    line("network", "bidirectional LSTM, ", spec.stack.layers(), " layers of ", spec.stack.d_model);
  } else {
    if (spec.encoder_decoder()) line("network", "an encoder and a decoder, each as follows");
    PrintTransformer(spec);
  }
  const char* each = spec.input.whole_pixels ? "pixel" : "byte";
  line("head", spec.logistics()
                   ? StrCat("mixture of ", spec.head.mixtures, " logistics of a ", each)
                   : StrCat(spec.head.classes, " classes"));
  line("positions", spec.input.max_length,
       spec.input.positions == Positions::kGrid ? ", also encoded by row and column" : "",
       spec.input.pixel_above ? StrCat("; the ", each, " above the next one is an input") : "");
  if (const StemSpec& stem = spec.input.stem; stem.channels > 0) {
    line("stem", "convolutions over ", stem.rows, " x ", stem.columns, " pixels to ", stem.channels,
         " channels, and over ", stem.second_rows, " x ", stem.second_columns);
  }
  if (const PatchSpec& patch = spec.input.patch; spec.patches()) {
    line("patches", "the layers read ", patch.tokens, " ", each, "s at a time; a network of width ",
         patch.width, " (", patch.d_ff, " hidden units) predicts each",
         patch.convolution > 0 ? StrCat(", after a convolution over ", patch.convolution) : "");
  }
  line("parameters", FormatCount(info["parameters"].get<double>()), " (", info["parameters"], ")");
  line("weights", bytes("weight_bytes"), " in fp32; the file has ", bytes("file_bytes"),
       ", with matrices in ", info["precision"].get<std::string>());
  line("state", DescribeState(spec, info));
  line("instruction set", info["isa"].get<std::string>());
  if (info.contains("training_fault")) {
    std::cout << "The file's training record is not readable: it "
              << info["training_fault"].get<std::string>() << ".\n";
  } else if (info["training"].is_null()) {
    std::cout << "The file has no training record.\n";
  } else {
    std::cout << "Trained:\n";
    PrintFields(info["training"], "");
  }
}

// Prints the mixer registry as a Markdown table, as in docs/attention/README.md.
void PrintMixers() {
  const auto yes = [](bool value) { return value ? "yes" : "–"; };
  std::cout << "| kind | causal | state of a sequence | feature map | cross attention | |\n"
               "|---|---|---|---|---|---|\n";
  for (const MixerInfo& mixer : Mixers()) {
    const char* state = mixer.constant_state ? "constant"
                        : mixer.recurrent    ? "grows with the length"
                        : mixer.causal       ? "its tokens, read again at each step"
                                             : "– (whole sequences)";
    std::cout << StrCat("| `", mixer.name, "` | ",
                        mixer.always_causal ? "always"
                        : mixer.causal      ? "if `causal` is set"
                                            : "–",
                        " | ", state, " | ", yes(mixer.maps), " | ",
                        mixer.cross.empty() ? "–" : StrCat("`", mixer.cross, "`"), " | ",
                        mixer.description, " |\n");
  }
}

void Run(const InfoArguments& options) {
  if (options.mixers) return PrintMixers();
  if (options.model.empty())
    throw InputError("MODEL or --mixers is required; see linnet info --help");
  const Checkpoint checkpoint = Checkpoint::Open(options.model);
  const ModelSpec& spec = checkpoint.spec();
  const int64_t parameters = ParameterCount(spec);
  std::string fault;
  const ordered_json training = ParseTraining(checkpoint.training(), fault);
  ordered_json info = {
      {"model", options.model},
      {"task", spec.task},
      {"spec", SpecJson(spec)},
      {"parameters", parameters},
      {"weight_bytes", parameters * int64_t{sizeof(float)}},
      {"file_bytes", std::filesystem::file_size(options.model)},
      {"precision", PrecisionName(checkpoint.precision())},
      {"state_bytes", StateBytesOf(spec, checkpoint.precision())},
      {"positions", spec.input.max_length},
      {"training", training},
      {"isa", kernels::ActiveIsa()},
  };
  if (!fault.empty()) info["training_fault"] = fault;
  if (options.json) {
    PrintJson(info);
  } else {
    PrintTable(spec, info);
  }
}

}  // namespace

void AddInfo(CLI::App& app) {
  CLI::App* verb = AddVerb(app, "info", "Show a model's architecture, sizes and training", "",
                           "  linnet info models/digits.safetensors\n"
                           "  linnet info models/digits.safetensors --json\n"
                           "  linnet info --mixers\n");
  auto options = std::make_shared<InfoArguments>();
  AddModelArgument(verb, options->model)->required(false);
  verb->add_flag("--mixers", options->mixers,
                 "Print a Markdown table of all kinds of attention and recurrence; needs no MODEL");
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
