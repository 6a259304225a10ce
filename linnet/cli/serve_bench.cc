#include "linnet/cli/serve.h"
namespace linnet::cli {
void AddServeBench(CLI::App&) {}
}  // namespace linnet::cli
