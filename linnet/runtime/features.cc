#include "linnet/runtime/features.h"

namespace linnet {
namespace {

constexpr FeatureMapBody kBodies[] = {
    {"relu", ReluFeatures<float>, ReluFeatures<double>},
    {"polynomial2", Polynomial2Features<float>, Polynomial2Features<double>},
    {"rff", RffFeatures<float>, RffFeatures<double>, /*floor=*/true},
    {"favor", FavorFeatures<float>, FavorFeatures<double>},
};

}  // namespace

const FeatureMapBody* FindFeatureBody(std::string_view name) {
  for (const FeatureMapBody& body : kBodies) {
    if (body.name == name) return &body;
  }
  return nullptr;
}

}  // namespace linnet
