// Reads IDX files (MNIST) and PNG files.
#include "fuzz/target.h"
#include "linnet/error.h"
#include "linnet/io/png.h"
#include "linnet/tasks/images/idx.h"

namespace linnet::fuzz {

const FuzzTarget kImages = {"images", [](std::span<const std::byte> bytes) {
                              const MemoryFile file(bytes);
                              try {
                                ReadIdx(file.path());
                              } catch (const InputError&) {
                                ReadPng(file.path());
                              }
                            }};

}  // namespace linnet::fuzz
