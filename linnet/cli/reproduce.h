// The paper's experiments, each as one command that runs it, draws it and writes a page about it.
//
// An experiment NAME is a file reproduce_NAME.cc that defines its Experiment; it is declared here
// and listed in reproduce_main.cc. It measures by running other verbs of linnet (child.h), so that
// nothing here needs libtorch, and what it says of a result it takes from that result.
#ifndef LINNET_CLI_REPRODUCE_H_
#define LINNET_CLI_REPRODUCE_H_

#include <CLI/CLI.hpp>

namespace linnet::cli {

struct Experiment {
  const char* name;             // "figure1"
  const char* description;      // one line
  const char* notes;            // what else there is to say
  const char* examples;         // lines, each indented
  void (*add)(CLI::App& verb);  // its options, and the callback that runs it
};

extern const Experiment kAll, kCouplet, kFigure1, kFigure2, kFigure3, kFigure4, kFigure5, kFigure6,
    kFigure7, kFigure8, kFigure9, kTable1, kTable2, kTable3, kTable4, kTable5;

}  // namespace linnet::cli

#endif  // LINNET_CLI_REPRODUCE_H_
