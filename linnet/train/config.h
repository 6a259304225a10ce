// All settings of a training run. They are saved in config.json in the run's folder; --config with
// that file repeats the run.
//
//   TrainConfig config;
//   ApplyJson(preset_or_file_text, "config.json", config);
//   std::string text = ToJson(config);
#ifndef LINNET_TRAIN_CONFIG_H_
#define LINNET_TRAIN_CONFIG_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "linnet/model/spec.h"

namespace linnet::train {

struct TrainConfig {
  std::string task;  // its name; help texts in VisitFields() describe all other fields

  std::string attention = "causal-linear";
  std::string feature_map = "elu";
  int features = 0;
  std::string similarity = "softmax";
  int lsh_rounds = 4;
  int lsh_buckets = 64;
  int lsh_chunk = 32;
  std::string lsh_variant = "published";
  int window = 0;
  bool rotary = false;
  double rotary_base = 10000;
  bool qkv_bias = true;
  bool out_bias = true;
  int short_convolution = 4;
  bool output_gate = true;
  bool negative_eigenvalues = false;
  int gate_rank = 16;
  int key_heads = 0;
  int householders = 2;
  double decay_floor = 0;
  bool lower_bound = false;
  int decay_rank = 32;
  int rate_rank = 32;
  int value_rank = 0;
  int layers = 8;
  int heads = 8;
  int d_model = 256;
  int d_ff = 0;
  int query_dim = 0;
  int value_dim = 0;
  std::string feed_forward = "mlp";
  std::string activation = "relu";
  std::string norm = "layer";
  bool norm_first = false;
  bool embedding_norm = false;
  std::string head = "logistics";
  int mixtures = 10;
  std::string positions = "sequence";
  bool pixel_above = false;
  bool whole_pixels = false;
  bool flips = false;
  int stem = 0;
  int patch = 1;
  int patch_width = 0;
  int patch_d_ff = 0;
  int patch_convolution = 0;

  std::string data;
  std::string dataset;
  int train_images = 0;
  int validation_images = 256;
  int held_out = 0;
  int min_length = 10;
  int max_length = 128;
  int symbols = 10;

  // Text and couplets.
  std::string unit = "byte";
  std::string tokenizer;
  int characters = 8000;
  int min_count = 1;
  int context = 256;
  double validation_share = 0.05;
  int validation_windows = 256;
  int validation_pairs = 1000;
  double other_lengths = 0;
  bool tied = true;
  bool head_bias = true;

  // Speech.
  std::string dictionary;
  std::string validation;
  std::string network = "transformer";
  int convolution = 0;
  int bands = 40;
  int stack = 9;
  int stride = 3;
  int lookahead = 3;
  std::string normalize = "utterance";
  double max_seconds = 30;
  double speed_perturbation = 0.1;
  int band_masks = 2;
  int band_mask_width = 8;
  int time_masks = 2;
  double time_mask_share = 0.1;

  int batch = 10;
  int accumulate = 1;
  int64_t steps = 0;
  double epochs = 250;
  std::string optimizer = "radam";
  double beta2 = 0.999;
  double lr = 1e-4;
  int64_t lr_warmup = 0;
  int64_t lr_drop_at = 0;
  double lr_drop_factor = 0.1;
  int64_t lr_decay = 0;
  std::string lr_decay_form = "linear";
  int lr_patience = 0;
  double lr_patience_factor = 0.5;
  double ema = 0;
  double weight_decay = 0.01;
  double clip = 1.0;
  double dropout = 0;
  std::string precision = "fp32";
  bool checkpoint_layers = false;
  uint64_t seed = 1;

  std::string init;
  std::string out;
  std::string device = "cpu";
  bool cuda_graph = false;
  int threads = 0;
  int64_t log_every = 10;
  int64_t validate_every = 1000;
  int64_t checkpoint_every = 500;
  double checkpoint_minutes = 10;
};

// VisitFields() is the single list of a config's fields, for flags, files and help. It calls
// visit(name, tasks, help, field) for each field. `tasks` names all tasks that have the setting
// (see Takes()). A setting whose help text differs between tasks has one call for each text.

// Network settings, which all tasks share.
template <typename Config, typename Visit>
void VisitNetworkFields(Config& c, const Visit& visit) {
  visit("attention", "",
        "mixer ('linnet info --mixers' lists all), or a pattern that the layers repeat: "
        "gated-delta-net:3,full repeats three gated-delta-net layers and one full layer",
        c.attention);
  visit("feature_map", "", "feature map of linear attention: elu, relu, polynomial2, rff or favor",
        c.feature_map);
  visit("features", "", "number of random features of rff and favor; 0: 2 x --query-dim",
        c.features);
  visit("similarity", "", "similarity of the kernel mixer: softmax, polynomial2 or rbf",
        c.similarity);
  visit("lsh_rounds", "", "reformer: hash rounds", c.lsh_rounds);
  visit("lsh_buckets", "", "reformer: buckets per round", c.lsh_buckets);
  visit("lsh_chunk", "", "reformer: chunk size, in positions", c.lsh_chunk);
  visit("lsh_variant", "", "reformer: variant, published or simple (as in fast-transformers)",
        c.lsh_variant);
  visit("window", "",
        "full: attention window, in positions, including the query's own; 0: unlimited", c.window);
  visit("rotary", "", "full: rotate queries and keys by their positions", c.rotary);
  visit("rotary_base", "", "full: base of the rotations' frequencies", c.rotary_base);
  visit("qkv_bias", "", "full: biases of queries, keys and values", c.qkv_bias);
  visit("out_bias", "", "full: bias of the output projection", c.out_bias);
  visit("short_convolution", "",
        "delta-net, gated-delta-net, gated-delta-product, kda, gdn2, ssd, hgrn: width of the "
        "convolutions of queries, keys and values, in positions; 0: none",
        c.short_convolution);
  visit("output_gate", "", "delta-net, gated-delta-net, gated-delta-product: gate on the outputs",
        c.output_gate);
  visit("negative_eigenvalues", "",
        "delta-net, gated-delta-net, gated-delta-product, kda, gdn2: let beta, the strength of a "
        "delta-rule update, range up to 2 instead of 1",
        c.negative_eigenvalues);
  visit("gate_rank", "",
        "rank of the low-rank projection of the decay (gla) or of the output gate (rwkv7)",
        c.gate_rank);
  visit(
      "key_heads", "",
      "number of key heads, a divisor of --heads; 0: same as --heads. With fewer than --heads, "
      "groups of heads share queries and keys (gated-delta-net, gated-delta-product, kda, ssd) or "
      "keys and values (full, gla, retention)",
      c.key_heads);
  visit("householders", "", "gated-delta-product: delta-rule updates per position", c.householders);
  visit("decay_floor", "",
        "gla, kda: lower limit of the decay's logarithm, for example -5 for kda; 0: none",
        c.decay_floor);
  visit("lower_bound", "", "hgrn: a learned lower bound of each channel's decay", c.lower_bound);
  visit("decay_rank", "", "rwkv7: rank of the projection of the decay", c.decay_rank);
  visit("rate_rank", "", "rwkv7: rank of the projection of a, the in-context learning rate",
        c.rate_rank);
  visit("value_rank", "",
        "rwkv7: rank of the projection by which later layers mix in the first layer's values; 0: "
        "none",
        c.value_rank);
  visit("layers", "", "transformer layers", c.layers);
  visit("heads", "", "attention heads", c.heads);
  visit("d_model", "", "width of the model", c.d_model);
  visit("d_ff", "", "width of the feed-forward blocks; 0: 4 x --d-model", c.d_ff);
  visit("query_dim", "", "query and key size per head; 0: --d-model / --heads", c.query_dim);
  visit("value_dim", "", "value size per head; 0: --d-model / --heads", c.value_dim);
  visit("feed_forward", "",
        "feed-forward blocks: mlp, gated (SwiGLU: silu(A x) * (B x), no biases), shifted (RWKV's: "
        "squared relu after a token shift, no biases) or none",
        c.feed_forward);
  visit("activation", "", "activation of mlp blocks: gelu or relu", c.activation);
  visit("norm", "", "kind of norms: layer or rms", c.norm);
  visit("norm_first", "", "norms before attention and feed-forward (pre-norm) instead of after",
        c.norm_first);
  visit("embedding_norm", "", "a norm of the embeddings before the first layer", c.embedding_norm);
  visit("convolution", "",
        "width of a depthwise convolution before each layer's mixer, in positions; 0: none. "
        "A preset's value is dropped if the mixers' own convolutions are at least as wide",
        c.convolution);
}

// Data and settings of the task images.
template <typename Config, typename Visit>
void VisitImageFields(Config& c, const Visit& visit) {
  visit("head", "images",
        "distribution of a byte: logistics (a mixture of them, as in the paper) or categorical (a "
        "probability for each of its 256 values)",
        c.head);
  visit("mixtures", "images", "--head logistics: components of the mixture", c.mixtures);
  visit("positions", "images",
        "position encoding: sequence (index), grid (also row and column) or none", c.positions);
  visit("pixel_above", "images",
        "also give the network the byte (or pixel) above the predicted one", c.pixel_above);
  visit("whole_pixels", "images",
        "color images: a position reads a pixel, not a byte, and predicts all colors of the next",
        c.whole_pixels);
  visit("flips", "images", "mirror half of the training images, chosen at random in each update",
        c.flips);
  visit("stem", "images",
        "channels of two masked convolutions over the bytes above and to the left of the predicted "
        "one; 0: none",
        c.stem);
  visit("patch", "images",
        "bytes (or pixels) that the layers read at a time; a small network predicts each of them. "
        "Must divide their number in an image row; 1: no patches",
        c.patch);
  visit("patch_width", "images",
        "with --patch: width of the embeddings and of the small network; 0: --d-model",
        c.patch_width);
  visit("patch_d_ff", "images",
        "with --patch: hidden units of the small network; 0: twice --patch-width", c.patch_d_ff);
  visit("patch_convolution", "images",
        "with --patch: width of a depthwise convolution over the embeddings that the small network "
        "reads, at most --patch; 0: none",
        c.patch_convolution);
  visit("data", "images", "folder that holds the data set; required", c.data);
  visit("dataset", "images",
        "name of the data set, mnist or cifar10; empty: detected from its files", c.dataset);
  visit("train_images", "images", "number of training images; 0: all", c.train_images);
  visit("validation_images", "images",
        "validate on at most the first N images, of the test set or of --held-out; 0: all",
        c.validation_images);
  visit("held_out", "images",
        "keep the last N training images for validation, instead of the test set; to compare "
        "settings; 0: none",
        c.held_out);
}

// Data and settings of the task speech.
template <typename Config, typename Visit>
void VisitSpeechFields(Config& c, const Visit& visit) {
  visit("data", "speech",
        "AN4's folder, or a manifest with one JSON object per line (docs/speech.md); required",
        c.data);
  visit("validation", "speech",
        "manifest for validation, required if --data is a manifest; with AN4, eight training "
        "speakers are held out instead",
        c.validation);
  visit("dictionary", "speech", "file of words and their phones, in CMUdict's format; not for AN4",
        c.dictionary);
  visit("network", "speech", "transformer, or lstm (bidirectional, --d-model units per direction)",
        c.network);
  visit("bands", "speech", "bands of the mel filterbank", c.bands);
  visit("stack", "speech", "size of each position's window, in frames of 10 ms", c.stack);
  visit("stride", "speech", "distance between positions, in frames", c.stride);
  visit("lookahead", "speech",
        "frames of the window that come after the position's own --stride frames", c.lookahead);
  visit("normalize", "speech",
        "data over which each band gets mean 0 and deviation 1: utterance or corpus", c.normalize);
  visit("max_seconds", "speech", "skip utterances longer than this, in seconds", c.max_seconds);
  visit("speed_perturbation", "speech",
        "change the speed of each utterance at random by -N, 0 or +N, as a share; 0: off",
        c.speed_perturbation);
  visit("band_masks", "speech", "SpecAugment: number of masked ranges of bands per utterance",
        c.band_masks);
  visit("band_mask_width", "speech", "SpecAugment: maximum width of a range of bands",
        c.band_mask_width);
  visit("time_masks", "speech", "SpecAugment: number of masked ranges of frames per utterance",
        c.time_masks);
  visit("time_mask_share", "speech",
        "SpecAugment: maximum width of a range of frames, as a share of the utterance",
        c.time_mask_share);
}

// Data, and settings that only some tasks have.
template <typename Config, typename Visit>
void VisitTaskFields(Config& c, const Visit& visit) {
  VisitImageFields(c, visit);
  VisitSpeechFields(c, visit);
  visit("positions", "text couplet copy recall",
        "position encoding: sequence (index) or none; not needed by mixers with decays or delta "
        "rules, nor with --rotary",
        c.positions);
  visit("data", "text", "file with the text; required", c.data);
  visit("unit", "text", "kind of tokens: byte, character, or token (byte pairs of --tokenizer)",
        c.unit);
  visit("tokenizer", "text", "for --unit token: a tokenizer.json with a byte-pair vocabulary",
        c.tokenizer);
  visit("characters", "text couplet",
        "maximum size of a character vocabulary, which keeps the most frequent characters",
        c.characters);
  visit("min_count", "text couplet", "characters seen fewer than N times become unknown",
        c.min_count);
  visit("context", "text", "tokens per training window", c.context);
  visit("validation_share", "text", "share of the text, from its end, held out for validation",
        c.validation_share);
  visit("validation_windows", "text", "number of validation windows", c.validation_windows);
  visit("tied", "text couplet", "tie the weights of embedding and head", c.tied);
  visit("head_bias", "text couplet", "biases of the head", c.head_bias);
  visit("data", "couplet",
        "folder with train/ and optionally valid/, each with in.txt and out.txt; without valid/, "
        "one training pair in 30 is held out; required",
        c.data);
  visit("max_length", "couplet", "positions of the model; more if the data set has longer couplets",
        c.max_length);
  visit("validation_pairs", "couplet", "number of validation pairs; 0: all", c.validation_pairs);
  visit("other_lengths", "couplet",
        "share of updates whose couplets are truncated or joined, so that the model learns lengths "
        "that the data do not have",
        c.other_lengths);
  visit("network", "couplet",
        "transformer or encoder-decoder (--layers layers in the encoder and in the decoder)",
        c.network);
  visit("min_length", "copy",
        "the part to copy has at least N tokens, or --max-length - 1 if that is less",
        c.min_length);
  visit("max_length", "copy", "the part to copy has fewer than N tokens", c.max_length);
  visit("max_length", "recall",
        "length of every sequence, in tokens: 4 times its key-value pairs, at most --symbols of "
        "them",
        c.max_length);
  visit("symbols", "copy", "number of different tokens to copy", c.symbols);
  visit("symbols", "recall", "number of different keys, and of different values", c.symbols);
}

// Updates: batches, optimizer, learning rate, regularization, precision.
template <typename Config, typename Visit>
void VisitUpdateFields(Config& c, const Visit& visit) {
  visit("batch", "", "sequences per update", c.batch);
  visit("accumulate", "", "process each batch in N parts, for less memory", c.accumulate);
  visit("steps", "", "number of updates; 0: computed from --epochs, if the task has that option",
        c.steps);
  visit("epochs", "images text couplet speech", "passes over the training data, instead of --steps",
        c.epochs);
  visit("optimizer", "",
        "optimizer: radam, adam or muon. Muon is Adam, except that the updates of the layers' "
        "matrices are orthogonalized: fewer updates are needed, and each takes longer; CPU only",
        c.optimizer);
  visit("beta2", "", "optimizer: decay of the average of squared gradients", c.beta2);
  visit("lr", "", "learning rate", c.lr);
  visit("lr_warmup", "", "length of the linear warm-up, in updates", c.lr_warmup);
  visit("lr_drop_at", "", "multiply the rate by --lr-drop-factor from update N on; 0: never",
        c.lr_drop_at);
  visit("lr_drop_factor", "", "see --lr-drop-at", c.lr_drop_factor);
  visit("lr_decay", "",
        "lower the rate to zero over the last N updates; N beyond the run's length: over the "
        "whole run; 0: off",
        c.lr_decay);
  visit("lr_decay_form", "", "form of --lr-decay: linear or cosine", c.lr_decay_form);
  visit("lr_patience", "",
        "multiply the rate by --lr-patience-factor after N validations without an improvement; "
        "0: never",
        c.lr_patience);
  visit("lr_patience_factor", "", "see --lr-patience", c.lr_patience_factor);
  visit("ema", "",
        "validate and save a moving average of the weights with this decay, e.g. 0.999; 0: off",
        c.ema);
  visit("weight_decay", "", "decoupled weight decay", c.weight_decay);
  visit("clip", "", "maximum gradient norm of each tensor; 0: no limit", c.clip);
  visit("dropout", "", "dropout probability", c.dropout);
  visit("precision", "",
        "precision of matrix products: fp32, or bf16 (faster where the processor supports it)",
        c.precision);
  visit("checkpoint_layers", "",
        "keep only each layer's input and recompute the rest in the backward pass: less memory, "
        "a third more time",
        c.checkpoint_layers);
}

// The run: seed, initial weights, folder, device, threads and intervals.
template <typename Config, typename Visit>
void VisitRunFields(Config& c, const Visit& visit) {
  visit("seed", "", "random seed of weights, data order and dropout", c.seed);
  visit("init", "",
        "model file with the initial weights, of the same network; the mixer may differ if its "
        "weights have the same names and shapes (otherwise, use linnet linearize)",
        c.init);
  visit("out", "", "folder for checkpoints, metrics.jsonl and config.json; required", c.out);
  visit("device", "", "cpu, or cuda if this libtorch supports it", c.device);
  visit("cuda_graph", "images copy recall text",
        "replay updates as a CUDA graph; faster for small models on a GPU", c.cuda_graph);
  visit("threads", "", "number of threads; 0: one per processor", c.threads);
  visit("log_every", "", "updates between records in metrics.jsonl", c.log_every);
  visit("validate_every", "", "updates between validations; 0: only at the end", c.validate_every);
  visit("checkpoint_every", "", "updates between checkpoints", c.checkpoint_every);
  visit("checkpoint_minutes", "",
        "write a checkpoint also if the last one is older than N minutes; 0: no limit",
        c.checkpoint_minutes);
}

template <typename Config, typename Visit>
void VisitFields(Config& c, const Visit& visit) {
  VisitNetworkFields(c, visit);
  VisitTaskFields(c, visit);
  VisitUpdateFields(c, visit);
  VisitRunFields(c, visit);
}

// Settings that had another name in version 0.1. Files and flags may still use the former name;
// FormerNames() returns the former names of a setting.
struct FormerName {
  const char *former, *name;
};
inline constexpr FormerName kFormerNames[] = {{"least_often", "min_count"},
                                              {"normalise", "normalize"}};
std::vector<const char*> FormerNames(std::string_view name);

// Whether a setting applies to `task`. `tasks` are names separated by spaces, or "" for all tasks.
bool Takes(const std::string& tasks, const std::string& task);

std::string ToJson(const TrainConfig& config);

// Sets the fields named in a JSON object and returns their names. Throws InputError, with a message
// that begins with `where`, on unknown fields and wrong types, and if the JSON is for another task
// than `config.task`.
std::set<std::string> ApplyJson(const std::string& json, const std::string& where,
                                TrainConfig& config);

// Throws InputError on invalid values.
void Validate(const TrainConfig& config);

// Throws InputError on an invalid spec. The message names the flag of a field, if there is one.
void ValidateSpec(const ModelSpec& spec);

// The learning rate of update `step` (from 0) of `steps`.
double LearningRate(const TrainConfig& config, int64_t step, int64_t steps);

// A spec with the network's fields (sizes, mixers, activation) and with derived sizes filled in.
// The task sets its own fields. Throws InputError, naming the flag, on an unknown name.
ModelSpec BaseSpec(const TrainConfig& config);
// ModelSpec::EmbeddingWidth() of the config's model.
inline int EmbeddingWidth(const TrainConfig& config) {
  return config.patch > 1 && config.patch_width > 0 ? config.patch_width : config.d_model;
}

// Resets to its default each mixer option that no layer of --attention has. BaseSpec() throws
// InputError if such an option has another value.
void DropUnusedOptions(TrainConfig& config);

// Whether every layer's mixer has convolutions of its queries, keys and values that are at least as
// wide as --convolution.
bool HasShortConvolutions(const TrainConfig& config);

}  // namespace linnet::train

#endif  // LINNET_TRAIN_CONFIG_H_
