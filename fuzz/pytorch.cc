// PyTorch's zip and pickle, and fast-transformers' tensor names.
#include "linnet/io/pytorch.h"
#include "fuzz/target.h"

namespace linnet::fuzz {

const FuzzTarget kPyTorch = {
    "pytorch", [](std::span<const std::byte> bytes) { PyTorchFile::FromMemory(bytes, "input"); }};

}  // namespace linnet::fuzz
