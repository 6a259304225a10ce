// What a training run shows on the terminal: progress, speed, validations.
//
//   RunReport report(line, progress, steps, steps_per_epoch, now);
//   report.Count(loss.tokens);                 // each update
//   report.Show(loss, "", now);
//   report.ShowValidation(metrics, "");
//
// Times are in seconds on a clock that stands still during validations and checkpoints.
#ifndef LINNET_TRAIN_RUN_REPORT_H_
#define LINNET_TRAIN_RUN_REPORT_H_

#include <cstdint>
#include <limits>
#include <string>

#include "linnet/base/progress.h"
#include "linnet/train/run_state.h"
#include "linnet/train/task.h"

namespace linnet::train {

class RunReport {
 public:
  // line: null to show nothing. `progress` is updated by the caller and must outlive this object.
  // steps_per_epoch: 0 if the data has no epochs.
  RunReport(ProgressLine* line, const RunProgress& progress, int64_t steps, int64_t steps_per_epoch,
            double now);

  // Counts an update that has read `tokens`.
  void Count(int64_t tokens);
  // Returns the tokens per second since the last call.
  double TakeRate(double now);
  // The metrics that Show() shows from now on. Until the first call it shows those of an update.
  void SetMetrics(const Metrics& metrics);

  // Whether the next Show() estimates the time of the run, after the first updates, which take
  // longer than others.
  bool EstimateDue() const;
  // Shows the progress after an update, followed by `remark`.
  void Show(const StepLoss& loss, const std::string& remark, double now);
  // Shows a validation, followed by `remark`.
  void ShowValidation(const Metrics& metrics, const std::string& remark);

 private:
  std::string Epoch() const;
  // Returns a remark if the first metric was better (lower) in an earlier validation, else "".
  std::string Worse(const std::string& name, double value);
  // Mean seconds per update, and estimated seconds for the remaining updates.
  double UpdateSeconds(double now) const { return (now - began_) / static_cast<double>(made_); }
  double SecondsLeft(double now) const {
    return UpdateSeconds(now) * static_cast<double>(steps_ - progress_.step);
  }

  ProgressLine* line_;
  const RunProgress& progress_;
  int64_t steps_, steps_per_epoch_;
  // Since the start or the last resumption: updates, and the best validation.
  int64_t made_ = 0;
  double best_ = std::numeric_limits<double>::infinity();
  int64_t best_step_ = 0;
  double began_, window_began_;  // the window: since the last TakeRate()
  int64_t window_tokens_ = 0;
  double rate_ = 0;    // the last TakeRate()
  std::string shown_;  // the metrics
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_RUN_REPORT_H_
