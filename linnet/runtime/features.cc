#include "linnet/runtime/features.h"

namespace linnet {
namespace {

constexpr FeatureMapBody kBodies[] = {
    {"relu", ReluFeatures<float>, ReluFeatures<double>},
    {"polynomial2", Polynomial2Features<float>, Polynomial2Features<double>},
};

}  // namespace

const FeatureMapBody* FindFeatureBody(std::string_view name) {
  for (const FeatureMapBody& body : kBodies) {
    if (body.name == name) return &body;
  }
  return nullptr;
}

}  // namespace linnet
