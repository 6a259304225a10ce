// Reads PyTorch's zip and pickle, and RWKV-7 models by their tensor names.
#include "linnet/io/pytorch.h"

#include "fuzz/target.h"
#include "linnet/model/rwkv.h"

namespace linnet::fuzz {

const FuzzTarget kPyTorch = {"pytorch", [](std::span<const std::byte> bytes) {
                               const PyTorchFile file = PyTorchFile::FromMemory(bytes, "input");
                               if (IsRwkv(file.tensors()))
                                 RwkvModel::Of(file.tensors(), "input", /*context=*/64);
                             }};

}  // namespace linnet::fuzz
