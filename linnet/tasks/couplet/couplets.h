// Data sets of Chinese couplets (对联): a first line, and a second line that matches it character by
// character.
//
//   CoupletSet train = LoadCouplets("couplet/regulated-verse", CoupletSplit::kTrain);
//   train.pairs[0].first                       // "数声相应鸠呼雨"
//
// The format is that of the data set couplet-dataset. A folder has train/ and may have valid/ and
// test/. Each of these has in.txt with the first lines and out.txt with the second lines, one
// couplet per line, with blanks between the characters.
#ifndef LINNET_TASKS_COUPLET_COUPLETS_H_
#define LINNET_TASKS_COUPLET_COUPLETS_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace linnet {

struct Couplet {
  std::string first, second;  // UTF-8, without blanks
};

struct CoupletSet {
  std::vector<Couplet> pairs;
  size_t left_out = 0;  // number of pairs left out: lines of different lengths, or empty lines
};

enum class CoupletSplit {
  kTrain,
  kValidation,  // valid/; if missing, every 30th pair of train/, which kTrain then leaves out
  kTest,        // test/; if missing, valid/
};

// Throws InputError if a file is missing or not UTF-8 (naming the line), if in.txt and out.txt
// differ in their number of lines, or if no pair is usable.
CoupletSet LoadCouplets(const std::string& dir, CoupletSplit split);

// The part of a line before or after a pause: its characters [begin, end).
struct Piece {
  size_t begin, end;
};
// The pieces of a line of `characters` characters. A line of five characters has the two pieces
// before and after the pause that follows its second character. A line of seven has four pieces: it
// can be cut after its fourth or its second character. Other lines have no pieces. A piece of the
// first line and the same piece of the second line form a shorter couplet, which training can use.
std::span<const Piece> PiecesOf(size_t characters);

// The number of characters of a UTF-8 text. Throws InputError if it is not UTF-8.
size_t CountCharacters(const std::string& text);

}  // namespace linnet

#endif  // LINNET_TASKS_COUPLET_COUPLETS_H_
