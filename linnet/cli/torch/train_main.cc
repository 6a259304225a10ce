// linnet-train: the verbs that need libtorch. `linnet train` and `linnet linearize` run it.
#include "linnet/cli/torch/train_program.h"

int main(int argc, char** argv) { return linnet::TrainProgram(argc, argv); }
