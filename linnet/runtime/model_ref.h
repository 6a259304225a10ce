// The engine's reference: the network in plain double precision over a checkpoint's tensors, all
// positions at once. For a narrow model (bf16 or int8) it rounds weights, activations and the sums
// of a linear attention's state as the engine does, and nothing else. From the packed model it
// takes only the split into groups, which determines the values that are rounded together.
//
//   ModelRef ref(checkpoint, *model);
//   ref.Outputs(tokens)                    // [positions][outputs], as from Step()
//   ref.Outputs(tokens, ModelRef::Pieces{7, 1, 1})   // as from Prefix() of 7 tokens and 2 steps
#ifndef LINNET_RUNTIME_MODEL_REF_H_
#define LINNET_RUNTIME_MODEL_REF_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "linnet/engine.h"
#include "linnet/model/checkpoint.h"

namespace linnet {

class ModelRef {
 public:
  using Rows = std::vector<std::vector<double>>;  // one per position
  // Lengths of the consecutive calls that read a sequence; they sum to its length.
  using Pieces = std::vector<size_t>;

  // `model` is the engine's form of the same checkpoint. Both must outlive this.
  ModelRef(const Checkpoint& checkpoint, const Model& model);
  ~ModelRef();

  // The head's outputs at each position. Reads the first `prefix` positions in one call and the
  // others one by one or, given `pieces`, all positions in calls of these lengths. In narrow
  // models, steps read rounded sums, and calls of several positions read unrounded ones, which are
  // rounded where the engine cuts a call. Models without recurrent state read the whole sequence.
  Rows Outputs(const std::vector<int32_t>& tokens, size_t prefix = 0);
  Rows Outputs(const std::vector<int32_t>& tokens, const Pieces& pieces);
  // The same for frames [positions * Inputs()].
  Rows Outputs(const std::vector<float>& frames, size_t prefix = 0);
  Rows Outputs(const std::vector<float>& frames, const Pieces& pieces);

 private:
  class Network;
  const std::unique_ptr<Network> network_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_MODEL_REF_H_
