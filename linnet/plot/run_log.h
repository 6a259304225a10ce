// The metrics of a training run, read from its metrics.jsonl (train/trainer.h).
//
//   const RunLog log = ReadRunLog("runs/digits");
//   for (const Track& track : log.tracks) ...    // "lr", "bits_per_dim", "validation_bits_per_dim"
#ifndef LINNET_PLOT_RUN_LOG_H_
#define LINNET_PLOT_RUN_LOG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace linnet::plot {

// One metric over a run: at each record that has it, the step, the seconds of training and the
// value. NaN stands for a null value or a missing time.
struct Track {
  std::string name;
  std::vector<double> step = {}, seconds = {}, value = {};
};

struct RunLog {
  std::string path;  // of the metrics file
  size_t records = 0;
  int64_t first_step = 0, last_step = 0;
  std::vector<Track> tracks;  // in order of first appearance

  const Track* Find(const std::string& name) const;  // nullptr: no such metric
};

// Reads a run from its folder or metrics file. Ignores an incomplete last line, since the run may
// still be writing it. Throws InputError if any other record is invalid (naming file and line), if
// there is no run, or if the run has no record or no metric yet.
RunLog ReadRunLog(const std::string& run);

}  // namespace linnet::plot

#endif  // LINNET_PLOT_RUN_LOG_H_
