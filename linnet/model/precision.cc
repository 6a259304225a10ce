#include "linnet/model/precision.h"

#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet {

const char* PrecisionName(Precision precision) {
  return precision == Precision::kInt8 ? "int8" : precision == Precision::kBf16 ? "bf16" : "f32";
}

Precision ParsePrecision(const std::string& name) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kInt8}) {
    if (name == PrecisionName(precision)) return precision;
  }
  if (name == "fp32") return Precision::kF32;
  throw InputError("unknown precision ", Quote(name), "; choose f32, bf16 or int8");
}

bool IsMatrix(std::string_view name) {
  for (const char* rwkv7 : {"receptance", "key", "value", "output", "w1", "a1", "g1", "v1"}) {
    if (name.ends_with(StrCat(".attention.", rwkv7, ".weight"))) return true;
  }
  return name.ends_with("_projection.weight") || name.ends_with("_proj.weight") ||
         name.ends_with("_proj.0.weight") || name.ends_with(".linear1.weight") ||
         name.ends_with(".gate.weight") || name.ends_with(".linear2.weight") ||
         name == "predictor.weight" || name.starts_with("lstm.weight_") ||
         name == "patch.in.weight" || name == "patch.out.weight" ||
         (name.starts_with("stem.output.") && name.ends_with(".weight"));
}

Precision PredictorPrecision(const ModelSpec& spec, Precision precision) {
  if (spec.head.tied) return precision;
  return precision == Precision::kF32 || spec.head.kind == HeadKind::kLogistics ? Precision::kF32
                                                                                : Precision::kBf16;
}

DType StoredAs(const ModelSpec& spec, std::string_view name, Precision precision) {
  if (name == "predictor.weight" || name == "input_projection.weight") {
    precision = PredictorPrecision(spec, precision);
  }
  if (precision == Precision::kF32) return DType::kF32;
  if (IsMatrix(name)) return precision == Precision::kInt8 ? DType::kI8 : DType::kBF16;
  return name.ends_with("_embedding.weight") ? DType::kBF16 : DType::kF32;
}

std::string ScaleName(std::string_view name) { return std::string(name) + "_scale"; }
std::string FactorName(std::string_view name) { return std::string(name) + "_factor"; }

}  // namespace linnet
