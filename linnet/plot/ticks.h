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

// Maps a value that the axis cannot show to NaN: not finite, absurdly large, or not positive on a
// logarithmic axis. Later sums therefore cannot overflow.
double Showable(double value, bool log);

// The axis range for data of that range (showable, low <= high): slightly wider than the data, but
// not across zero, and never empty.
Range FitRange(Range data, bool log);

// At most `most` (at least 2) labeled ticks, in rising order, at 1, 2 or 5 times a power of ten. On
// a logarithmic axis they are as fine as possible, with minor ticks between.
std::vector<Tick> Ticks(Range range, bool log, size_t most);

}  // namespace linnet::plot

#endif  // LINNET_PLOT_TICKS_H_
