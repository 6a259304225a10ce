// linnet-train: the verbs that need libtorch. `linnet train` and `linnet linearize` run it.
#include "linnet/cli/torch/torch_verbs.h"

int main(int argc, char** argv) { return linnet::TrainProgram(argc, argv); }
