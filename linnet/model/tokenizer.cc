#include "linnet/model/tokenizer.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/io/unicode.h"

namespace linnet {
namespace {

using nlohmann::json;

constexpr int32_t kMostTokens = 1 << 20;
// Limits to what a small file can make of a text or of a token's name.
constexpr size_t kLongestReplacement = 1024, kLongestPiece = 1 << 16, kMostGrowth = 16;
constexpr const char* kEndNames[] = {"</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>"};

// The regular expression of GPT-2's words.
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The characters that stand for the bytes 0 to 255 in ByteLevel vocabularies: printable bytes stand
// for themselves, the other bytes are U+0100, U+0101, ... in order.
const std::array<char32_t, 256>& ByteCharacters() {
  static const std::array<char32_t, 256> characters = [] {
    std::array<char32_t, 256> all{};
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      all[byte] = printable ? byte : next++;
    }
    return all;
  }();
  return characters;
}

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

std::string Replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string changed;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != text.npos; at = found + from.size()) {
    changed.append(text, at, found - at).append(to);
  }
  return changed.append(text, at);
}

// A function that calls body(begin, end) for each match in the text.
using Finder = std::function<void(std::string_view text, FunctionRef<void(size_t, size_t)> body)>;

// What a Split step does with its matches.
enum class Split { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext };

// Divides a text into matches and the texts between them. `split` tells which of these to remove or
// to join. With `invert`, matches and the texts between them change roles.
std::vector<std::string> Pieces(const std::string& text, const Finder& find, Split split,
                                bool invert) {
  struct Range {
    size_t begin, end;
    bool match;
  };
  std::vector<Range> ranges;
  size_t at = 0;
  find(text, [&](size_t begin, size_t end) {
    if (at < begin) ranges.push_back({at, begin, invert});
    ranges.push_back({begin, end, !invert});
    at = end;
  });
  if (at < text.size()) ranges.push_back({at, text.size(), invert});
  std::vector<std::string> pieces;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& own = ranges[i];
    if (split == Split::kRemoved && own.match) continue;
    size_t begin = own.begin, end = own.end;
    // A match joins a neighbor that is not a match.
    if (split == Split::kMergedWithPrevious && !own.match && i + 1 < ranges.size() &&
        ranges[i + 1].match) {
      end = ranges[++i].end;
    } else if (split == Split::kMergedWithNext && own.match && i + 1 < ranges.size() &&
               !ranges[i + 1].match) {
      end = ranges[++i].end;
    }
    pieces.push_back(text.substr(begin, end - begin));
  }
  return pieces;
}

}  // namespace

// Reads a tokenizer.json into a Tokenizer.
class Tokenizer::Reader {
 public:
  Reader(Tokenizer& to, const std::string& where) : to_(to), where_(where) {}

  void Read(const json& all) {
    Require(all.is_object() && all.contains("model") && all["model"].is_object(),
            "has no 'model'; it must be a tokenizer.json");
    Model(all["model"]);
    Steps(Part(all, "normalizer"), "normalizers", [this](const json& step) { Normalizer(step); });
    if (all.contains("added_tokens")) Added(all["added_tokens"]);
    Steps(Part(all, "pre_tokenizer"), "pretokenizers",
          [this](const json& step) { Splitter(step); });
    Steps(Part(all, "post_processor"), "processors", [this](const json& step) { Template(step); });
    const json decoder = Part(all, "decoder");
    Require(!decoder.is_null(), "has no decoder");
    Steps(decoder, "decoders", [this](const json& step) { Decoder(step); });
    Names();
    End(Int(all, "end", -1));
  }

 private:
  template <class... Message>
  void Require(bool good, const Message&... message) const {
    if (!good) throw InputError(where_, ": ", message...);
  }
  static json Part(const json& all, const char* name) {
    return all.contains(name) ? all[name] : json();
  }
  std::string String(const json& object, const char* name, const std::string& otherwise) const {
    if (!object.contains(name) || object[name].is_null()) return otherwise;
    Require(object[name].is_string(), "'", name, "' must be a string");
    return object[name];
  }
  std::string Replacement(const json& step) const {
    std::string content = String(step, "content", "");
    Require(content.size() <= kLongestReplacement, "a replacement of ", content.size(),
            " bytes; at most ", kLongestReplacement, " are possible");
    return content;
  }
  bool Bool(const json& object, const char* name, bool otherwise) const {
    if (!object.contains(name) || object[name].is_null()) return otherwise;
    Require(object[name].is_boolean(), "'", name, "' must be true or false");
    return object[name];
  }
  int Int(const json& object, const char* name, int otherwise) const {
    if (!object.contains(name) || object[name].is_null()) return otherwise;
    return Id(object[name], name);
  }
  int Id(const json& value, const std::string& name) const {
    Require(value.is_number_integer() && value >= -1 && value < kMostTokens, "'", Brief(name),
            "' must be a number below ", kMostTokens);
    return value;
  }
  std::string Type(const json& step) const {
    Require(step.is_object(), "a step must be a JSON object");
    return String(step, "type", "");
  }

  // Runs `body` for a step, or, if it is a Sequence, for each step of its field `list`.
  void Steps(const json& step, const char* list, const std::function<void(const json&)>& body) {
    if (step.is_null()) return;
    if (Type(step) != "Sequence") return body(step);
    Require(step.contains(list) && step[list].is_array(), "a Sequence has no '", list, "'");
    for (const json& one : step[list]) Steps(one, list, body);
  }

  void Model(const json& model) {
    const std::string type = String(model, "type", "BPE");
    Require(type == "BPE", "a tokenizer of type ", Quote(type), "; only BPE is supported");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      Require(String(model, name, "").empty(), "the model's ", name, " is not supported");
    }
    const json dropout = Part(model, "dropout");
    Require(dropout.is_null() || dropout == 0, "the model's dropout is not supported");
    Require(model.contains("vocab") && model["vocab"].is_object() && model.contains("merges") &&
                model["merges"].is_array(),
            "the model must have a 'vocab' and 'merges'");
    BytePairs::Ids ids;
    for (const auto& [token, id] : model["vocab"].items()) {
      Require(id.is_number_integer() && id >= 0, "the token ", Quote(token), " has no number");
      ids[token] = Id(id, token);
    }
    std::vector<std::pair<std::string, std::string>> merges;
    for (const json& merge : model["merges"]) {
      if (merge.is_string()) {
        const std::string both = merge;
        const size_t space = both.find(' ');
        Require(space != both.npos, "the merge ", Quote(both), " has no space");
        merges.emplace_back(both.substr(0, space), both.substr(space + 1));
      } else {
        Require(
            merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(),
            "a merge must be two tokens");
        merges.emplace_back(merge[0], merge[1]);
      }
    }
    to_.pairs_ = std::make_unique<BytePairs>(
        std::move(ids), merges,
        BytePairOptions{.unknown = String(model, "unk_token", ""),
                        .fuse_unknown = Bool(model, "fuse_unk", false),
                        .byte_fallback = Bool(model, "byte_fallback", false),
                        .ignore_merges = Bool(model, "ignore_merges", false)},
        where_);
  }

  // A pattern of a Split or Replace: a string or a regular expression.
  Finder Pattern(const json& step) const {
    const json pattern = Part(step, "pattern");
    Require(pattern.is_object() && pattern.size() == 1 && pattern.begin()->is_string(),
            "a step of type ", Quote(Type(step)), " has no pattern");
    const std::string text = *pattern.begin();
    Require(!text.empty(), "a pattern is empty");
    if (pattern.begin().key() == "Regex") {
      return [regex = Regex(text, where_)](std::string_view in,
                                           FunctionRef<void(size_t, size_t)> body) {
        regex.ForMatches(in, body);
      };
    }
    Require(pattern.begin().key() == "String", "a pattern must be a Regex or a String");
    return [text](std::string_view in, FunctionRef<void(size_t, size_t)> body) {
      for (size_t at = 0; (at = in.find(text, at)) != in.npos; at += text.size()) {
        body(at, at + text.size());
      }
    };
  }

  void Normalizer(const json& step) {
    const std::string type = Type(step);
    if (type == "NFC") {
      to_.normalizers_.push_back([](const std::string& text) { return ToNfc(text); });
    } else if (type == "Prepend") {
      to_.normalizers_.push_back([before = String(step, "prepend", "")](const std::string& text) {
        return text.empty() ? text : before + text;
      });
    } else if (type == "Replace") {
      to_.normalizers_.push_back(
          [find = Pattern(step), to = Replacement(step)](const std::string& text) {
            std::string changed;
            size_t at = 0;
            find(text, [&](size_t begin, size_t end) {
              changed.append(text, at, begin - at).append(to);
              at = end;
            });
            return changed.append(text, at);
          });
    } else {
      throw InputError(where_, ": the normalizer ", Quote(type), " is not supported");
    }
  }

  void Added(const json& tokens) {
    Require(tokens.is_array(), "'added_tokens' must be a list");
    for (const json& token : tokens) {
      Require(token.is_object(), "an added token must be a JSON object");
      AddedToken added{.text = String(token, "content", ""),
                       .id = Int(token, "id", -1),
                       .left_strip = Bool(token, "lstrip", false),
                       .right_strip = Bool(token, "rstrip", false),
                       .normalized = Bool(token, "normalized", true),
                       .special = Bool(token, "special", false)};
      Require(!added.text.empty() && added.id >= 0, "an added token has no text or no number");
      Require(!Bool(token, "single_word", false), "the added token ", Quote(added.text),
              " is a single_word, which is not supported");
      names_.emplace_back(added.id, added.text);
      if (added.normalized) added.text = to_.Normalized(added.text);
      if (added.text.empty()) continue;  // never found in a text
      to_.added_.push_back(std::move(added));
    }
    std::stable_sort(to_.added_.begin(), to_.added_.end(),
                     [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
    for (const AddedToken& token : to_.added_) {
      to_.begins_[token.normalized][static_cast<uint8_t>(token.text[0])] = true;
    }
  }

  // Adds a step that splits each word into the pieces to(word).
  void Split(const std::function<std::vector<std::string>(const Word&)>& to) {
    to_.splitters_.push_back([to](const Words& words) {
      Words pieces;
      for (const Word& word : words) {
        bool first = word.first;
        for (std::string& piece : to(word)) {
          if (piece.empty()) continue;
          pieces.push_back({std::move(piece), first});
          first = false;
        }
      }
      return pieces;
    });
  }
  void SplitAt(const Finder& find, linnet::Split split, bool invert) {
    Split([=](const Word& word) { return Pieces(word.text, find, split, invert); });
  }
  Finder Matches(const char* pattern) const {
    return [regex = Regex(pattern, where_)](std::string_view in,
                                            FunctionRef<void(size_t, size_t)> body) {
      regex.ForMatches(in, body);
    };
  }

  void Splitter(const json& step) {
    const std::string type = Type(step);
    if (type == "ByteLevel") {
      ByteLevel(step);
    } else if (type == "Metaspace") {
      Metaspace(step);
    } else if (type == "Digits") {
      SplitAt(Matches(Bool(step, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)"),
              linnet::Split::kIsolated, false);
    } else if (type == "Split") {
      const std::string behavior = String(step, "behavior", "");
      const std::pair<const char*, linnet::Split> known[] = {
          {"Removed", linnet::Split::kRemoved},
          {"Isolated", linnet::Split::kIsolated},
          {"MergedWithPrevious", linnet::Split::kMergedWithPrevious},
          {"MergedWithNext", linnet::Split::kMergedWithNext}};
      const auto* found = std::find_if(std::begin(known), std::end(known),
                                       [&](const auto& one) { return behavior == one.first; });
      Require(found != std::end(known), "a Split with the behavior ", Quote(behavior),
              ", which is not supported");
      SplitAt(Pattern(step), found->second, Bool(step, "invert", false));
    } else {
      throw InputError(where_, ": the pre-tokenizer ", Quote(type), " is not supported");
    }
  }

  void ByteLevel(const json& step) {
    if (Bool(step, "add_prefix_space", true)) {
      Split([](const Word& word) {
        return std::vector<std::string>{(word.text[0] == ' ' ? "" : " ") + word.text};
      });
    }
    if (Bool(step, "use_regex", true)) {
      SplitAt(Matches(kGpt2Words), linnet::Split::kIsolated, false);
    }
    Split([](const Word& word) {
      std::string characters;
      for (const char c : word.text)
        AppendUtf8(ByteCharacters()[static_cast<uint8_t>(c)], characters);
      return std::vector<std::string>{characters};
    });
  }

  // Where a Metaspace inserts a space: "always" before each word, "first" only before a text's
  // first word, or "never".
  std::string Scheme(const json& step) const {
    // Older files have add_prefix_space instead of prepend_scheme.
    const bool old = Bool(step, "add_prefix_space", true);
    const std::string scheme = String(step, "prepend_scheme", old ? "always" : "never");
    Require(scheme == "always" || scheme == "first" || scheme == "never",
            "a Metaspace with the prepend_scheme ", Quote(scheme), " is not supported");
    return scheme;
  }

  void Metaspace(const json& step) {
    const std::string space = String(step, "replacement", "▁"), scheme = Scheme(step);
    Require(!space.empty(), "a Metaspace with an empty replacement");
    Split([=](const Word& word) {
      std::string text = Replaced(word.text, " ", space);
      const bool prepend = scheme == "always" || (scheme == "first" && word.first);
      if (prepend && !text.starts_with(space)) text = space + text;
      return std::vector<std::string>{text};
    });
    if (!Bool(step, "split", true)) return;
    SplitAt(
        [space](std::string_view in, FunctionRef<void(size_t, size_t)> body) {
          for (size_t at = 0; (at = in.find(space, at)) != in.npos; at += space.size()) {
            body(at, at + space.size());
          }
        },
        linnet::Split::kMergedWithNext, false);
  }

  void Template(const json& step) {
    const std::string type = Type(step);
    if (type == "ByteLevel") return;  // affects offsets only
    Require(type == "TemplateProcessing", "the post-processor ", Quote(type), " is not supported");
    const json single = Part(step, "single"), known = Part(step, "special_tokens");
    Require(single.is_array() && known.is_object(), "a template has no 'single' text");
    bool behind = false;
    for (const json& piece : single) {
      Require(piece.is_object(), "a template's piece must be a JSON object");
      if (piece.contains("Sequence")) {
        behind = true;
        continue;
      }
      const json token = Part(piece, "SpecialToken");
      Require(token.is_object(), "a template's piece must be a Sequence or a SpecialToken");
      const std::string name = String(token, "id", "");
      Require(!behind, "the template puts ", Quote(name),
              " behind a text, which is not supported for language models");
      Require(known.contains(name) && known[name].is_object() && known[name].contains("ids") &&
                  known[name]["ids"].is_array(),
              "the template's token ", Quote(name), " has no 'ids'");
      for (const json& id : known[name]["ids"]) to_.begin_.push_back(Id(id, name));
    }
  }

  void Decoder(const json& step) {
    const std::string type = Type(step);
    if (type == "Strip") {
      Require(String(step, "content", "") == " " && Int(step, "stop", 0) == 0,
              "a Strip of anything but spaces at the beginning is not supported");
      to_.strip_ = static_cast<size_t>(std::max(0, Int(step, "start", 0)));
      return;
    }
    Require(to_.strip_ == 0, "the decoder ", Quote(type), " after a Strip is not supported");
    if (type == "ByteLevel") {
      decoders_.emplace_back(FromByteLevel);
    } else if (type == "Replace") {
      const json pattern = Part(step, "pattern");
      Require(pattern.is_object() && pattern.contains("String"),
              "a decoder's Replace of a Regex is not supported");
      const std::string from = String(pattern, "String", "");
      Require(!from.empty(), "a pattern is empty");
      decoders_.emplace_back([from, to = Replacement(step)](const std::string& name) {
        return Replaced(name, from, to);
      });
    } else if (type == "Metaspace") {
      const std::string space = String(step, "replacement", "▁");
      Require(!space.empty(), "a Metaspace with an empty replacement");
      to_.strip_ = Scheme(step) == "never" ? 0 : 1;
      decoders_.emplace_back(
          [space](const std::string& name) { return Replaced(name, space, " "); });
    } else if (type == "ByteFallback") {
      decoders_.emplace_back(FromByteToken);
    } else {
      Require(type == "Fuse", "the decoder ", Quote(type), " is not supported");
    }
  }

  // The bytes of a name that consists of ByteCharacters(). Other names stay as they are.
  static std::string FromByteLevel(const std::string& name) {
    static const std::unordered_map<char32_t, char> bytes = [] {
      std::unordered_map<char32_t, char> all;
      for (size_t i = 0; i < 256; ++i) all[ByteCharacters()[i]] = static_cast<char>(i);
      return all;
    }();
    std::string text;
    for (size_t at = 0; at < name.size();) {
      const auto next = NextCodePoint(name, at);
      const auto byte = next ? bytes.find(next->value) : bytes.end();
      if (byte == bytes.end()) return name;
      text += byte->second;
      at += next->bytes;
    }
    return text;
  }

  // The byte of a name like "<0xE6>". Other names stay as they are.
  static std::string FromByteToken(const std::string& name) {
    if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return name;
    int byte = 0;
    for (const char c : name.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0) return name;
      byte = byte * 16 + digit;
    }
    return std::string(1, static_cast<char>(byte));
  }

  void Names() {
    int32_t most = -1;
    for (const auto& [name, id] : to_.pairs_->ids()) most = std::max(most, id);
    for (const auto& [id, name] : names_) most = std::max(most, id);
    for (const int32_t id : to_.begin_) most = std::max(most, id);
    to_.pieces_.resize(static_cast<size_t>(most + 1)), to_.names_ = to_.pieces_;
    const auto set = [&](const std::string& name, int32_t id) {
      std::string& piece = to_.pieces_[static_cast<size_t>(id)];
      piece = to_.names_[static_cast<size_t>(id)] = name;
      for (const auto& decode : decoders_) {
        piece = decode(piece);
        Require(piece.size() <= kLongestPiece, "its decoders make ", piece.size(),
                " bytes of the token ", Quote(name), "; at most ", kLongestPiece, " are possible");
      }
    };
    for (const auto& [name, id] : to_.pairs_->ids()) set(name, id);
    for (const auto& [id, name] : names_) set(name, id);
    for (const AddedToken& token : to_.added_) {
      if (token.special) to_.pieces_[static_cast<size_t>(token.id)].clear();
    }
  }

  void End(int32_t end) {
    Require(end < static_cast<int32_t>(to_.size()), "the vocabulary lacks the token ", end,
            ", which ends a text");
    if (end >= 0) to_.end_ = end;
    for (const char* name : kEndNames) {
      if (!to_.end_) to_.end_ = to_.Special(name);
    }
  }

  Tokenizer& to_;
  const std::string& where_;
  std::vector<std::pair<int32_t, std::string>> names_;  // of added tokens
  std::vector<std::function<std::string(const std::string&)>> decoders_;
};

namespace {

json Parsed(const std::string& text, const std::string& where) {
  std::string fault;
  json all = ParseJson(text, /*max_depth=*/32, fault);
  if (!fault.empty()) throw InputError(where, ": ", fault);
  return all;
}

}  // namespace

Tokenizer::Tokenizer(const std::string& json, const std::string& where) {
  Reader(*this, where).Read(Parsed(json, where));
}

std::string Tokenizer::With(const std::string& json, int32_t end, const std::string& where) {
  const nlohmann::json all = Parsed(json, where);
  nlohmann::json kept = {{"end", end}};
  for (const char* name :
       {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}) {
    if (all.is_object() && all.contains(name)) kept[name] = all[name];
  }
  return kept.dump();
}

std::shared_ptr<const Tokenizer> Tokenizer::Of(const std::string& json, const std::string& where) {
  static std::mutex mutex;
  static std::string known;
  static std::shared_ptr<const Tokenizer> last;
  const std::lock_guard lock(mutex);
  if (!last || known != json) {
    last = std::make_shared<Tokenizer>(json, where);
    known = json;
  }
  return last;
}

std::optional<int32_t> Tokenizer::Special(const std::string& text) const {
  for (const AddedToken& token : added_) {
    if (token.special && Name(token.id) == text) return token.id;
  }
  return std::nullopt;
}

std::string Tokenizer::Normalized(std::string_view text) const {
  std::string normalized(text);
  for (const auto& normalizer : normalizers_) {
    normalized = normalizer(normalized);
    if (normalized.size() > kLongestPiece + kMostGrowth * text.size()) {
      throw InputError("the tokenizer's normalizers make ", normalized.size(),
                       " bytes of a text of ", text.size(), "; at most ", kMostGrowth,
                       " times as many are possible");
    }
  }
  return normalized;
}

// Divides a text into added tokens and the texts between them. Finds only added tokens with this
// value of `normalized`; if several begin at the same byte, the longest.
std::vector<Tokenizer::Segment> Tokenizer::Cut(std::string_view text, bool normalized) const {
  std::vector<Segment> segments;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* found = nullptr;
    if (begins_[normalized][static_cast<uint8_t>(text[at])]) {
      for (const AddedToken& token : added_) {
        if (token.normalized == normalized && text.substr(at).starts_with(token.text)) {
          found = &token;
          break;
        }
      }
    }
    if (found == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + found->text.size();
    const auto space = [&](size_t i) {
      const auto next = NextCodePoint(text, i);
      return next && IsSpace(next->value) ? next->bytes : 0;
    };
    while (found->left_strip && begin > done) {
      size_t before = begin - 1;
      while (before > done && (static_cast<uint8_t>(text[before]) & 0xc0) == 0x80) --before;
      if (space(before) != begin - before) break;
      begin = before;
    }
    while (found->right_strip && end < text.size() && space(end) > 0) end += space(end);
    if (begin > done) segments.push_back({text.substr(done, begin - done)});
    segments.push_back({{}, found->id});
    done = at = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done)});
  return segments;
}

void Tokenizer::AppendWords(std::string_view text, bool first, std::vector<int32_t>& ids) const {
  Words words = {{std::string(text), first}};
  for (const auto& splitter : splitters_) words = splitter(words);
  for (const Word& word : words) pairs_->Append(word.text, ids);
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  for (size_t at = 0; at < text.size();) {
    const auto next = NextCodePoint(text, at);
    if (!next) throw InputError("the text is not UTF-8: byte ", at, " is invalid");
    at += next->bytes;
  }
  std::vector<int32_t> ids;
  for (const Segment& raw : Cut(text, /*normalized=*/false)) {
    if (raw.token >= 0) {
      ids.push_back(raw.token);
      continue;
    }
    const std::string normalized = Normalized(raw.text);
    for (const Segment& segment : Cut(normalized, /*normalized=*/true)) {
      if (segment.token >= 0) {
        ids.push_back(segment.token);
      } else {
        AppendWords(segment.text,
                    raw.text.data() == text.data() && segment.text.data() == normalized.data(),
                    ids);
      }
    }
  }
  return ids;
}

const std::string& Tokenizer::Piece(int32_t token) const {
  static const std::string none;
  const bool known = token >= 0 && static_cast<size_t>(token) < size();
  return known ? pieces_[static_cast<size_t>(token)] : none;
}

const std::string& Tokenizer::Name(int32_t token) const {
  static const std::string none;
  const bool known = token >= 0 && static_cast<size_t>(token) < size();
  return known ? names_[static_cast<size_t>(token)] : none;
}

std::string Tokenizer::Decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) text += Piece(token);
  size_t strip = 0;
  while (strip < std::min(strip_, text.size()) && text[strip] == ' ') ++strip;
  return text.substr(strip);
}

}  // namespace linnet
