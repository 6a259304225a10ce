// linnet bench serve, in a build without the server.
#include "bench/benchmarks.h"
#include "linnet/error.h"

namespace linnet::bench {

void AddServe(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("serve", "Time the server (not in this build)");
  verb->prefix_command();
  verb->callback([] {
    throw InputError(
        "bench serve: this build has no server; configure with -DLINNET_SERVE=ON (it "
        "needs Boost, cpp-httplib and OpenSSL)");
  });
}

}  // namespace linnet::bench
