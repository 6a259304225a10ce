// libFuzzer's entry point; LINNET_FUZZ_TARGET names the target.
#include <cstdint>

#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  linnet::fuzz::ReadInput(linnet::fuzz::LINNET_FUZZ_TARGET, std::as_bytes(std::span(data, size)));
  return 0;
}
