// Number types of a model's matrices, in its file and in the engine.
//
//   linnet::Precision precision = linnet::ParsePrecision("int8");
#ifndef LINNET_PRECISION_H_
#define LINNET_PRECISION_H_

#include <cstdint>
#include <string>

#include "linnet/export.h"

namespace linnet {

enum class Precision : uint8_t { kF32, kBf16, kInt8 };

// "f32", "bf16", "int8".
LINNET_API const char* PrecisionName(Precision precision);
// Throws InputError for an unknown name ("fp32" is accepted).
LINNET_API Precision ParsePrecision(const std::string& name);

}  // namespace linnet

#endif  // LINNET_PRECISION_H_
