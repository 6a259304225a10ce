// Where a sequence's past lies in memory (private to linnet/runtime): one layer behind the other, of
// each layer
//
//   causal-linear   what steps read (LinearStepShape::HotFloats()), then what only folds do
//                   (ColdFloats())
//   softmax         of each head the keys [capacity, D] and the values [capacity, M]
//   reformer        nothing: it has no recurrent form
#ifndef LINNET_RUNTIME_STATE_LAYOUT_H_
#define LINNET_RUNTIME_STATE_LAYOUT_H_

#include <cstddef>

#include "linnet/kernels/linear_step.h"
#include "linnet/kernels/softmax_step.h"
#include "linnet/model/precision.h"
#include "linnet/model/spec.h"

namespace linnet {

struct StateLayout {
  StateLayout(const ModelSpec& spec, Precision precision);

  bool softmax;
  kernels::LinearStepShape linear;  // all heads of a layer
  kernels::SoftmaxStepShape cache;
  size_t layer_floats, floats;  // of a sequence

  // Calls body(first float, floats, whether they are pairs of bfloat16) for each part of a sequence.
  template <class Body>
  void ForParts(Body body) const {
    if (softmax) return body(size_t{0}, floats, false);
    const size_t z = linear.HotZ(), rows = linear.HotRows(), hot = linear.HotFloats();
    const size_t rest = linear.ColdSums(), cold = linear.ColdFloats();
    for (size_t at = 0; at < floats; at += layer_floats) {
      body(at, z, linear.narrow);
      body(at + z, rows - z, false);
      body(at + rows, hot - rows, linear.narrow);
      body(at + hot, rest, false);
      body(at + hot + rest, cold - rest, !linear.narrow);
    }
  }
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_STATE_LAYOUT_H_
