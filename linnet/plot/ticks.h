// What an axis shows: its range, round numbers along it, and how they are written.
//
//   const Range range = FitRange({10, 18000}, /*log=*/false);    // 0 to 18720
//   for (const Tick& tick : Ticks(range, /*log=*/false, /*most=*/6)) {
//     ...  // 0 "0", 5000 "5k", 10000 "10k", 15000 "15k"
//   }
#ifndef LINNET_PLOT_TICKS_H_
#define LINNET_PLOT_TICKS_H_

#include <cstddef>
#include <optional>
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

// The value as an axis of that kind can show it: NaN for what it cannot (nothing finite, absurdly
// large, not positive where the axis is logarithmic), so that no later sum overflows.
double Showable(double value, bool log);

// The range of an axis for data of that range (showable, low <= high): a little wider than the
// data, though not across zero, and never empty. `min` and `max`, where given, are its ends.
Range FitRange(Range data, bool log, std::optional<double> min = {},
               std::optional<double> max = {});

// Labelled ticks at round numbers, at most `most` of them (at least 2): 1, 2, 5 times a power of
// ten; on a logarithmic axis as fine as there is room, with minor ticks between. In rising order.
std::vector<Tick> Ticks(Range range, bool log, size_t most);

}  // namespace linnet::plot

#endif  // LINNET_PLOT_TICKS_H_
