// linnet info: what a model file holds, without running it.
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/json.h"
#include "linnet/kernels/isa.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/vocabulary.h"
#include "linnet/runtime/speech_encoder.h"
#include "linnet/runtime/state.h"

namespace linnet::cli {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string model;
  bool json = false;
};

// What a model says of its training: longer or deeper than any that linnet writes.
constexpr size_t kMaxTraining = 64 << 10;
constexpr int kMaxDepth = 16;

// As JSON, so that a hostile text cannot steer the terminal; without quotes where it is plain.
std::string Shown(const ordered_json& value) {
  if (value.is_number_float()) return StrCat(value.get<double>());
  const std::string text = EscapeControls(value.dump());
  const bool plain =
      value.is_string() && text.size() == value.get_ref<const std::string&>().size() + 2;
  return plain ? text.substr(1, text.size() - 2) : text;
}

// What a model says of its training is free-form: show any JSON as "name value" lines, but for what
// is empty.
void PrintFields(const ordered_json& value, const std::string& name) {
  if (value.is_null() || value == "") return;
  if (value.is_object()) {
    for (const auto& [key, field] : value.items()) {
      PrintFields(field, (name.empty() ? "" : name + ".") + Shown(key));
    }
    return;
  }
  std::cout << "  " << std::left << std::setw(20) << name << " " << Shown(value) << "\n";
}

ordered_json ParseTraining(const std::string& text, std::string& fault) {
  fault.clear();
  if (text.empty()) return nullptr;
  if (text.size() <= kMaxTraining) return ParseOrderedJson(text, kMaxDepth, fault);
  fault = "is larger than " + FormatBytes(kMaxTraining);
  return nullptr;
}

// Whether the runtime steps it, as far as attention goes.
bool Runs(const AttentionSpec& spec) {
  return FindAttentionKind(spec.kind).recurrent && FindFeatureMap(spec.feature_map).runtime;
}

// Of a sequence; null where the runtime keeps none.
ordered_json StateBytesOf(const ModelSpec& spec, Precision precision) {
  if (spec.task == "speech") {
    const bool streams = spec.network == "transformer" && spec.Causal();
    return streams ? ordered_json(SpeechStateBytes(spec)) : ordered_json(nullptr);
  }
  if (spec.network == "encoder-decoder") return nullptr;
  return Runs(spec.attention) ? ordered_json(StateBytes(spec, precision)) : ordered_json(nullptr);
}

template <class... Values>
void Line(const char* name, const Values&... values) {
  std::cout << "  " << std::left << std::setw(20) << name << " ";
  (std::cout << ... << values) << "\n";
}

void PrintTransformer(const ModelSpec& spec) {
  Line("attention", DescribeAttention(spec),
       spec.convolution > 0 ? StrCat(", convolutions over ", spec.convolution) : "");
  Line("layers", spec.layers, " of ", spec.d_model, " (feed-forward ", spec.d_ff, ", ",
       spec.activation, spec.norm_first ? ", norms first)" : ")");
  Line("heads", spec.heads, " of ", spec.query_dim,
       spec.value_dim == spec.query_dim ? "" : StrCat(" (values: ", spec.value_dim, ")"));
}

void PrintTable(const ModelSpec& spec, const ordered_json& info) {
  const auto line = [](const char* name, const auto&... value) { Line(name, value...); };
  const auto bytes = [&](const char* key) { return FormatBytes(info[key].get<double>()); };
  std::cout << info["model"].get<std::string>() << "\n";
  if (spec.task == "images") {
    line("task", "images of ", spec.width, " x ", spec.height,
         spec.channels == 1 ? ", gray" : ", RGB");
  } else if (spec.task == "text" || spec.task == "couplet") {
    line("task", spec.task, ", ", spec.vocabulary - Vocabulary::kFirst, " ", spec.text.unit, "s",
         spec.tied ? "; embedding and head are one matrix" : "");
  } else if (spec.task == "speech") {
    line("task", "speech, ", spec.classes - 1, " phones");
    line("hears", spec.speech.bands, " bands at ", spec.speech.sample_rate,
         " samples a second, normalised by the ", spec.speech.normalise, "; ", spec.speech.stack,
         " frames of 10 ms every ", spec.speech.stride, ", ", spec.speech.lookahead,
         " of them ahead");
  } else {
    line("task", spec.task, ", ", spec.vocabulary - 1, " symbols");
  }
  if (spec.network == "lstm") {
    line("network", "LSTM in both directions, ", spec.layers, " layers of ", spec.d_model);
  } else {
    if (spec.network == "encoder-decoder") {
      line("network", "an encoder and a decoder, each as follows; for training alone");
    }
    PrintTransformer(spec);
  }
  line("head", spec.head == "logistics" ? StrCat("mixture of ", spec.mixtures, " logistics")
                                        : StrCat(spec.classes, " classes"));
  line("positions", spec.max_length, spec.positions == "grid" ? ", by row and column too" : "",
       spec.pixel_above ? "; the byte above is given" : "");
  line("parameters", FormatCount(info["parameters"].get<double>()), " (", info["parameters"], ")");
  line("weights", bytes("weight_bytes"), " in fp32; the file has ", bytes("file_bytes"),
       ", matrices in ", info["precision"].get<std::string>());
  if (spec.task == "speech" && info["state_bytes"].is_null()) {
    line("state", "none: it hears utterances as a whole");
  } else if (spec.network == "encoder-decoder") {
    line("state", "none: it does not run outside training");
  } else if (info["state_bytes"].is_null()) {
    const AttentionSpec& attention = spec.attention;
    if (attention.kind == "reformer" && attention.lsh_variant == "published" &&
        spec.task == "images") {
      line("state", "none: 'reformer' is no RNN; it reads everything again for each symbol");
    } else {
      const bool kind = FindAttentionKind(attention.kind).recurrent;
      line("state", "none: ", kind ? "the feature map '" : "'",
           kind ? attention.feature_map : attention.kind, "' is not run by the runtime");
    }
  } else {
    const std::string room =
        StrCat(": room for the keys and values of ", spec.max_length, " positions");
    line("state", bytes("state_bytes"), " a sequence",
         spec.attention.kind == "full" ? room : ", however long");
  }
  line("instruction set", info["isa"].get<std::string>());
  if (info.contains("training_fault")) {
    std::cout << "What the file says of its training is not readable: it "
              << info["training_fault"].get<std::string>() << ".\n";
  } else if (info["training"].is_null()) {
    std::cout << "The file does not say what it was trained on.\n";
  } else {
    std::cout << "Trained:\n";
    PrintFields(info["training"], "");
  }
}

void Run(const Options& options) {
  const Checkpoint checkpoint = Checkpoint::Open(options.model);
  const ModelSpec& spec = checkpoint.spec();
  const int64_t parameters = ParameterCount(spec);
  std::string fault;
  const ordered_json training = ParseTraining(checkpoint.training(), fault);
  ordered_json info = {
      {"model", options.model},
      {"task", spec.task},
      {"spec", ordered_json::parse(ToJson(spec))},
      {"parameters", parameters},
      {"weight_bytes", parameters * int64_t{sizeof(float)}},
      {"file_bytes", std::filesystem::file_size(options.model)},
      {"precision", PrecisionName(checkpoint.precision())},
      {"state_bytes", StateBytesOf(spec, checkpoint.precision())},
      {"positions", spec.max_length},
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
  CLI::App* verb =
      AddVerb(app, "info", "Show a model's architecture, its sizes and what it was trained on", "",
              "  linnet info models/digits.safetensors\n"
              "  linnet info models/digits.safetensors --json\n");
  auto options = std::make_shared<Options>();
  AddModelArgument(verb, options->model);
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
