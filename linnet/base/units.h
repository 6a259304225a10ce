// Human-readable numbers: formatting and parsing.
//
//   FormatSeconds(3725) == "1h02m"
//   FormatCount(1234567) == "1.23M"
//   ParseSeconds("2h") == 7200
#ifndef LINNET_BASE_UNITS_H_
#define LINNET_BASE_UNITS_H_

#include <cstdint>
#include <string>

namespace linnet {

// "0.8s", "42s", "3m20s", "1h02m", "2d03h"; "?" if negative or not finite.
std::string FormatSeconds(double seconds);

// "999", "12.3k", "1.23M", "4.56G": three significant digits, powers of 1000.
std::string FormatCount(double count);

// "512 B", "262 kB", "25.3 MB": powers of 1000.
std::string FormatBytes(double bytes);

// Parses "90", "90s", "15m", "1.5h" or "2d" to seconds. Throws InputError on any other form.
double ParseSeconds(const std::string& text);

}  // namespace linnet

#endif  // LINNET_BASE_UNITS_H_
