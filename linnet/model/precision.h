// How files store a model's tensors: the data type of each tensor, given the file's precision.
//
//   for (const TensorInfo& info : TensorTable(spec)) {
//     DType stored = StoredAs(spec, info.name, precision);  // I8 for matrices, BF16 for embeddings
//   }
//
// An int8 matrix NAME [out, in] has one scale per output, in the tensor NAME_scale [out], and may
// have one factor per input, a power of two, in NAME_factor [in]; both are F32. The weight of
// output o and input i is value[o, i] * scale[o] * factor[i], with the value in -127 .. 127. At
// inference the activations are first multiplied by the factors and then rounded; the factors bring
// inputs of different magnitude into a similar range.
#ifndef LINNET_MODEL_PRECISION_H_
#define LINNET_MODEL_PRECISION_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "linnet/io/safetensors.h"
#include "linnet/model/spec.h"
#include "linnet/precision.h"

namespace linnet {

// Whether a tensor of TensorTable(spec) is a matrix that multiplies activations: the projections,
// the feed-forward layers, the predictor, the LSTM's weights, the second convolution of a stem, the
// matrices of patches.
bool IsMatrix(std::string_view tensor_name);

// The type of a tensor in a file of that precision. f32 files hold only F32. Matrices are BF16 in
// bf16 files and I8 in int8 files. Embeddings, categorical predictors and frame projections are
// BF16 in both. Exception: a tied predictor is stored like other matrices, since it is most of a
// small text model. A logistics predictor is small and stays F32: in the digits model, an int8
// predictor would cost 0.09 bits/dim, while int8 in all other matrices together costs 0.003. All
// other tensors are F32, including a stem's first convolution, whose matrix is small.
DType StoredAs(const ModelSpec& spec, std::string_view tensor_name, Precision precision);
// The precision of the predictor and of the frame projection in a file of precision `precision`.
Precision PredictorPrecision(const ModelSpec& spec, Precision precision);

// The tensor names of an int8 matrix's scales and factors.
std::string ScaleName(std::string_view tensor_name);
std::string FactorName(std::string_view tensor_name);

}  // namespace linnet

#endif  // LINNET_MODEL_PRECISION_H_
