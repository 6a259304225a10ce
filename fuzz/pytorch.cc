// Reads PyTorch files (a zip archive with a pickle). If the tensor names are those of RWKV-7, opens
// the file as an RWKV-7 model.
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
