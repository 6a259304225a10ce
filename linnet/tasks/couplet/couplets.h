// Chinese couplets (对联): a first line and a second one that answers it, character by character.
//
//   CoupletSet train = LoadCouplets("couplet/regulated-verse", CoupletSplit::kTrain);
//   train.pairs[0].first                       // "数声相应鸠呼雨"
//
// A folder has train/, and valid/ or test/ or both, each with in.txt and out.txt: a line a couplet, the same
// ones in both, characters with blanks between them (the couplet-dataset's format).
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
  size_t left_out = 0;  // pairs whose lines have not equally many characters, or none
};

enum class CoupletSplit {
  kTrain,
  kValidation,  // valid/; without it every 30th pair of train/, which kTrain then leaves out
  kTest,        // test/; without it valid/
};

// Throws InputError, naming file and line, on files that are not there, not UTF-8 or not equally long.
CoupletSet LoadCouplets(const std::string& dir, CoupletSplit split);

// Where a line of so many characters can be cut so that its pieces stay parallel to those of the other
// line: [begin, end) of each. Verse of five characters pauses behind the second, of seven behind the fourth
// (and the second); lines of other lengths have no pieces.
struct Piece {
  size_t begin, end;
};
std::span<const Piece> PiecesOf(size_t characters);

// Characters of a text in UTF-8. Throws InputError on another.
size_t CountCharacters(const std::string& text);

}  // namespace linnet

#endif  // LINNET_TASKS_COUPLET_COUPLETS_H_
