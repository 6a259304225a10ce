// linnet-train as a function.
#ifndef LINNET_CLI_TORCH_TRAIN_PROGRAM_H_
#define LINNET_CLI_TORCH_TRAIN_PROGRAM_H_

namespace linnet {

// Runs linnet-train with these arguments and returns its exit code.
int TrainProgram(int argc, char** argv);

}  // namespace linnet

#endif  // LINNET_CLI_TORCH_TRAIN_PROGRAM_H_
