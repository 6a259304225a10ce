// Verbs that need heavy libraries live in separate programs, so that `linnet` stays small and
// starts at once. For example, `linnet train` replaces its own process by linnet-train (exec).
//
//   AddSiblingVerb(app, "train", "Train a model", kTrainProgram);
#ifndef LINNET_CLI_SIBLING_H_
#define LINNET_CLI_SIBLING_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace linnet::cli {

struct Sibling {
  const char* program;           // the name of the program and of its CMake target
  const char* option;            // the CMake option that builds it; null: always built
  const char* needs;             // the libraries that it needs, for messages
  void (*prepare)() = nullptr;   // sets up the environment before the program starts
  bool has_subcommands = false;  // the verb's name is the program's first argument
};

// Sets variables that the libraries beneath libtorch read when they are loaded, unless the user has
// set them: GOMP_SPINCOUNT, so that waiting threads spin for some microseconds only, and
// OPENBLAS_CORETYPE, OpenBLAS's name of the kernels for this processor.
void PrepareTorch();

inline constexpr Sibling kBenchProgram = {"linnet-bench", nullptr, "", nullptr, true};
inline constexpr Sibling kBenchTorchProgram = {"linnet-bench-torch", "LINNET_TRAIN", "libtorch",
                                               PrepareTorch, true};
inline constexpr Sibling kDataProgram = {"linnet-data", "LINNET_DOWNLOAD", "libcurl and OpenSSL"};
inline constexpr Sibling kPlotProgram = {"linnet-plot", "LINNET_PLOT", "Cairo"};
inline constexpr Sibling kReproduceProgram = {"linnet-reproduce", "LINNET_PLOT", "Cairo"};
inline constexpr Sibling kServeProgram = {"linnet-serve", "LINNET_SERVE",
                                          "Boost, cpp-httplib and OpenSSL", nullptr, true};
inline constexpr Sibling kSpeechProgram = {"linnet-speech", "LINNET_SPEECH",
                                           "libsndfile and libsamplerate", nullptr, true};
inline constexpr Sibling kTrainProgram = {"linnet-train", "LINNET_TRAIN", "libtorch", PrepareTorch,
                                          true};

// Adds a verb that replaces this process by the sibling and passes on all arguments, including
// --help. The verb looks for the program beside this executable, then on the PATH, and throws
// InputError if the program is in neither place.
void AddSiblingVerb(CLI::App& app, const std::string& name, const std::string& summary,
                    const Sibling& sibling);

// Replaces this process by the sibling, with these arguments. Throws InputError if the program is
// not found, RuntimeError if it exists but cannot be started.
[[noreturn]] void Become(const Sibling& sibling, const std::vector<std::string>& arguments);

}  // namespace linnet::cli

#endif  // LINNET_CLI_SIBLING_H_
