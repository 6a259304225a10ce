// Axis layout: the range, and round numbers along it with their labels.
//
//   const Range range = FitRange({10, 18000}, /*log=*/false);    // 0 to 18720
//   for (const Tick& tick : Ticks(range, /*log=*/false, /*most=*/6)) {
//     ...  // 0 "0", 5000 "5k", 10000 "10k", 15000 "15k"
//   }
#ifndef LINNET_PLOT_TICKS_H_
#define LINNET_PLOT_TICKS_H_

#include <cstddef>
#include <string>
#include <vector>

namespace linnet::plot {

struct Range {
  double low = 0, high = 0;
};

struct Tick {
  double value = 0;
  std::string label;  // "" for a minor tick
};

// Returns the value, or NaN if the axis cannot show it: if it is not finite, above 1e100 in
// magnitude or, on a logarithmic axis, below 1e-100. On a linear axis, magnitudes below 1e-100
// become 0. These limits keep later sums from overflowing.
double Showable(double value, bool log);

// Returns the axis range for data from data.low to data.high (showable, low <= high): never empty,
// slightly wider than the data, but on a linear axis not extended across zero.
Range FitRange(Range data, bool log);

// At most `most` (at least 2) labeled ticks, in rising order. On a linear axis they are the
// multiples of 1, 2 or 5 times a power of ten. On a logarithmic axis they are 1, 2 and 5 times each
// power of ten or, if that makes more than `most` labels, only powers of ten; minor ticks lie
// between. If its range has fewer than three such values, it gets the ticks of a linear axis.
std::vector<Tick> Ticks(Range range, bool log, size_t most);

}  // namespace linnet::plot

#endif  // LINNET_PLOT_TICKS_H_
