// The causal stem of images (StemSpec) over the rows of a block (private to linnet/runtime).
//
//   const Stem stem(model, block, work);
//   stem.Features(begin, end);   // of these rows; then a barrier, if a team divides the rows
//   stem.Output({.begin = begin, .end = end, .to = width}, LinearMode::kAdd, x);
//   stem.Keep();                 // once, after every member of the team has called Output()
#ifndef LINNET_RUNTIME_STEM_H_
#define LINNET_RUNTIME_STEM_H_

#include <cstddef>
#include <cstdint>

#include "linnet/runtime/packed_model.h"

namespace linnet {

// Working memory.
struct StemWork {
  float* features;    // [rows, channels], of the block's rows; shared like Workspace::x
  float* in;          // [kStemRows, inputs of a convolution]
  float* out;         // [kStemRows, outputs of a convolution]
  float* sum;         // [rows, width], shared; used if a team divides the columns, not the rows
  std::byte* narrow;  // rounded inputs of the second convolution, in narrow models
};

// Maximum number of rows, all predicting bytes of one color, that are multiplied together.
inline constexpr size_t kStemRows = 32;

// Floats of StemWork::in and out, and bytes of narrow; 0 without a stem.
size_t StemInFloats(const PackedStem& stem);
size_t StemOutFloats(const Model::Packed& model);
size_t StemNarrowBytes(const Model::Packed& model);

class Stem {
 public:
  Stem(const Model::Packed& model, const Block& block, const StemWork& work);

  // Computes the features of rows [begin, end).
  void Features(size_t begin, size_t end) const;
  // Part of the output [rows of the block, embedding_width].
  struct Part {
    size_t begin, end;    // rows
    size_t from = 0, to;  // columns; `from` is a multiple of kernels::kPanel
  };
  // Writes that part to y, or adds it. Needs the features of its rows and of all rows before them.
  void Output(const Part& part, kernels::LinearMode mode, float* y) const;
  // Stores the features that the next block needs.
  void Keep() const;

 private:
  struct Row;
  template <class Body>
  void ForRows(size_t begin, size_t end, Body body) const;
  template <class Body>
  void ForColors(size_t begin, size_t end, Body body) const;
  // The byte that position t of a sequence of the block predicts.
  size_t Next(size_t sequence, size_t t) const {
    return block_.Position(sequence) + block_.ahead + t + 1 - first_;
  }
  int32_t Byte(const Row& row, size_t index) const;
  const float* FeaturesOf(const Row& row, size_t index) const;
  float* State(size_t sequence) const {
    return states_ + block_.Place(sequence) * block_.state_stride;
  }
  void GatherBytes(const Row& row, float* to) const;
  void GatherFeatures(const Row& row, float* to) const;

  const Model::Packed& model_;
  const Block& block_;
  const StemWork& work_;
  const size_t first_;       // StemFirst()
  float* states_ = nullptr;  // the stem's state of the sequence at place 0; null: none
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_STEM_H_
