// Parses the JSON of a model's spec. Writing the spec and parsing it again must give the same spec.
#include <cstdlib>

#include "fuzz/target.h"
#include "linnet/spec.h"

namespace linnet::fuzz {

const FuzzTarget kSpec = {"spec", [](std::span<const std::byte> bytes) {
                            const std::string json(reinterpret_cast<const char*>(bytes.data()),
                                                   bytes.size());
                            const ModelSpec spec = FromJson(json, "input");
                            ParameterCount(spec);
                            if (!(FromJson(ToJson(spec), "again") == spec)) std::abort();
                          }};

}  // namespace linnet::fuzz
