#include "linnet/tasks/couplet/couplets.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/file.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeldOut = 30;  // without valid/, one pair in 30 is held out for validation

struct Line {
  std::string text;
  size_t characters = 0;
};

// Reads the lines of a UTF-8 file. Drops blanks: U+3000, and all characters up to U+0020.
std::vector<Line> ReadLines(const fs::path& path) {
  std::istringstream in(ReadFile(path));
  std::vector<Line> lines;
  for (std::string raw; std::getline(in, raw);) {
    Line line;
    for (size_t at = 0; at < raw.size();) {
      const auto next = NextCodePoint(raw, at);
      if (!next) {
        throw InputError(path.string(), ": line ", lines.size() + 1, " is not UTF-8");
      }
      constexpr char32_t kIdeographicSpace = 0x3000;
      if (next->value > 0x20 && next->value != kIdeographicSpace) {
        line.text.append(raw, at, next->bytes);
        ++line.characters;
      }
      at += next->bytes;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// Reads the pairs of the folder `part` (train/, valid/ or test/) whose line index satisfies keep().
template <class Keep>
CoupletSet ReadPart(const fs::path& part, Keep keep) {
  const std::vector<Line> in = ReadLines(part / "in.txt"), out = ReadLines(part / "out.txt");
  if (in.size() != out.size()) {
    throw InputError(part.string(), ": in.txt has ", in.size(), " lines and out.txt ", out.size(),
                     "; both must have one line per couplet");
  }
  CoupletSet set;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!keep(i)) continue;
    if (in[i].characters == 0 || in[i].characters != out[i].characters) {
      ++set.left_out;
    } else {
      set.pairs.push_back({in[i].text, out[i].text});
    }
  }
  if (set.pairs.empty()) throw InputError(part.string(), ": holds no couplet that can be used");
  return set;
}

bool Present(const fs::path& part) {
  std::error_code none;
  return fs::exists(part / "in.txt", none);
}

}  // namespace

CoupletSet LoadCouplets(const std::string& dir, CoupletSplit split) {
  const fs::path root = dir, train = root / "train", valid = root / "valid", test = root / "test";
  if (!Present(train)) {
    throw InputError(dir, ": has no train/in.txt; give a folder with train/ and valid/ or test/");
  }
  const auto all = [](size_t) { return true; };
  if (split == CoupletSplit::kTest) return ReadPart(Present(test) ? test : valid, all);
  if (Present(valid)) return ReadPart(split == CoupletSplit::kTrain ? train : valid, all);
  return ReadPart(train, [&](size_t i) {
    return (i % kHeldOut == kHeldOut - 1) == (split == CoupletSplit::kValidation);
  });
}

std::span<const Piece> PiecesOf(size_t characters) {
  static constexpr Piece kFive[] = {{0, 2}, {2, 5}}, kSeven[] = {{0, 4}, {4, 7}, {0, 2}, {2, 7}};
  if (characters == 5) return kFive;
  if (characters == 7) return kSeven;
  return {};
}

size_t CountCharacters(const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    const auto next = NextCodePoint(text, at);
    if (!next) throw InputError("the text is not UTF-8: byte ", at, " is invalid");
    at += next->bytes;
  }
  return count;
}

}  // namespace linnet
