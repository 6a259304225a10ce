// The machine's name and today's date, which go into the record of a measurement.
#ifndef LINNET_PROGRAM_MACHINE_H_
#define LINNET_PROGRAM_MACHINE_H_

#include <string>

namespace linnet::cli {

std::string MachineName();  // "Intel(R) Xeon(R) Processor, family 6, model 143"
std::string Today();        // "2026-11-21"

}  // namespace linnet::cli

#endif  // LINNET_PROGRAM_MACHINE_H_
