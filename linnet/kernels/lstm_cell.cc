#include "linnet/kernels/lstm_cell.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/lstm_cell.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/lstm_cell-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(LstmForward);
HWY_EXPORT(LstmBackward);

void LstmCellForward(size_t rows, size_t hidden, const LstmCellForwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(LstmForward)(rows, hidden, args);
}

void LstmCellBackward(size_t rows, size_t hidden, const LstmCellBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(LstmBackward)(rows, hidden, args);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
