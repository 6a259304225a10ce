// The larger of two numerical errors. Unlike std::max(), it never drops a NaN.
#ifndef LINNET_BASE_LARGER_ERROR_H_
#define LINNET_BASE_LARGER_ERROR_H_

namespace linnet {

// NaN if a or b is NaN.
inline double LargerError(double a, double b) { return a > b || a != a ? a : b; }

}  // namespace linnet

#endif  // LINNET_BASE_LARGER_ERROR_H_
