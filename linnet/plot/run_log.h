// What a training run wrote down: its metrics.jsonl (train/trainer.h), metric by metric.
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

// A metric over a run. NaN stands where a record has null, or does not tell the time.
struct Track {
  std::string name;
  std::vector<double> step = {}, seconds = {}, value = {};
};

struct RunLog {
  std::string path;  // the file
  size_t records = 0;
  int64_t first_step = 0, last_step = 0;
  std::vector<Track> tracks;  // in the order in which they appear

  const Track* Find(const std::string& name) const;  // nullptr: no such metric
};

// Reads a run's folder, or the file itself. A last line without its end is ignored where it is no
// whole record: the run may be writing it. Throws InputError with file and line for other lines
// that are no records, and where there is no run, or none with a record yet.
RunLog ReadRunLog(const std::string& run);

}  // namespace linnet::plot

#endif  // LINNET_PLOT_RUN_LOG_H_
