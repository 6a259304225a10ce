// In which numbers a model's matrices are kept: in its file, and by the engine that runs it.
//
//   Precision precision = ParsePrecision("int8");
//   for (const TensorInfo& info : TensorTable(spec)) {
//     DType stored = StoredAs(spec, info.name, precision);   // I8 for matrices, BF16 for embeddings, ...
//   }
//
// An int8 matrix has a scale an output beside it, a tensor NAME_scale [out] in F32, and may have a
// factor an input, NAME_factor [in], a power of two: a weight is value * scale * factor, with the
// value in -127 .. 127. Factors even out inputs of unlike size: activations are multiplied with them
// before they are rounded.
#ifndef LINNET_MODEL_PRECISION_H_
#define LINNET_MODEL_PRECISION_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "linnet/io/safetensors.h"
#include "linnet/model/spec.h"

namespace linnet {

enum class Precision : uint8_t { kF32, kBf16, kInt8 };

// "f32", "bf16", "int8".
const char* PrecisionName(Precision precision);
// Throws InputError for another name ("fp32" is understood).
Precision ParsePrecision(const std::string& name);

// Whether a tensor of a model's table is a matrix that activations are multiplied with: the
// projections, the feed-forward layers, the predictor.
bool IsMatrix(std::string_view tensor_name);

// The type of a tensor in a file of that precision. Embeddings are BF16 in both narrower ones, and so is
// a predictor of classes and a projection of frames; but one that is tied is as narrow as the others, since
// it is most of a small model of text. One of logistics is small, and stays F32: in int8 it would cost 0.09 bits/dim
// of the digits, where everything else together costs 0.005. So does what is left.
DType StoredAs(const ModelSpec& spec, std::string_view tensor_name, Precision precision);
Precision PredictorPrecision(const ModelSpec& spec, Precision precision);

// The tensors with an int8 matrix' scales and factors.
std::string ScaleName(std::string_view tensor_name);
std::string FactorName(std::string_view tensor_name);

}  // namespace linnet

#endif  // LINNET_MODEL_PRECISION_H_
