// Reads the config.json of a flash-linear-attention folder whose model.safetensors is always the
// same.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fuzz/target.h"
#include "linnet/error.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/fla.h"

namespace linnet::fuzz {
namespace {

// A folder with a model.safetensors, removed at the end of the process. FlaModel::Open() reads the
// rank of a gla gate from the file's only tensor.
struct Folder {
  Folder() : path(std::filesystem::temp_directory_path() / StrCat("linnet_fuzz_fla.", getpid())) {
    std::filesystem::create_directory(path);
    const float number = 0;
    SafetensorsWriter writer;
    writer.Add("model.layers.0.attn.gk_proj.0.weight", DType::kF32, {1, 1}, &number);
    writer.Write((path / "model.safetensors").string());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

}  // namespace

const FuzzTarget kFla = {"fla", [](std::span<const std::byte> bytes) {
                           static const Folder folder;
                           // WriteFileAtomically() would wait for the disk each time.
                           std::ofstream(folder.path / "config.json", std::ios::binary)
                               .write(reinterpret_cast<const char*>(bytes.data()),
                                      static_cast<std::streamsize>(bytes.size()));
                           FlaModel::Open(folder.path.string());
                         }};

}  // namespace linnet::fuzz
