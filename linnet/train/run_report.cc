#include "linnet/train/run_report.h"

#include <cstdio>

#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/train/metrics.h"

namespace linnet::train {
namespace {

constexpr int64_t kWarmUp = 5;  // updates; the first ones take longer

}  // namespace

RunReport::RunReport(ProgressLine* line, const RunProgress& progress, int64_t steps,
                     int64_t steps_per_epoch, double now)
    : line_(line),
      progress_(progress),
      steps_(steps),
      steps_per_epoch_(steps_per_epoch),
      began_(now),
      window_began_(now) {}

void RunReport::Count(int64_t tokens) {
  ++made_;
  window_tokens_ += tokens;
}

double RunReport::TakeRate(double now) {
  rate_ = static_cast<double>(window_tokens_) / (now - window_began_);
  window_began_ = now;
  window_tokens_ = 0;
  return rate_;
}

void RunReport::SetMetrics(const Metrics& metrics) { shown_ = train::Show(metrics); }

bool RunReport::EstimateDue() const {
  return line_ != nullptr && made_ == kWarmUp && progress_.step < steps_;
}

void RunReport::Show(const StepLoss& loss, const std::string& remark, double now) {
  if (line_ == nullptr) return;
  if (EstimateDue()) {
    line_->Finish(StrCat("an update takes ", FormatSeconds(UpdateSeconds(now)), ": about ",
                         FormatSeconds(SecondsLeft(now)), " to go, plus validation"));
  }
  if (!line_->Due()) return;
  if (shown_.empty()) SetMetrics(Read(loss.metrics));
  std::string text = StrCat("step ", progress_.step, "/", steps_, Epoch(), "  ", shown_);
  if (rate_ > 0) text += "  " + FormatCount(rate_) + " tokens/s";
  if (!remark.empty()) text += "  " + remark;
  if (made_ >= 3) text += "  " + FormatSeconds(SecondsLeft(now)) + " left";
  line_->Update(text);
}

void RunReport::ShowValidation(const Metrics& metrics, const std::string& remark) {
  const std::string worse = Worse(metrics[0].first, metrics[0].second);
  if (line_ == nullptr) return;
  line_->Finish(StrCat("step ", progress_.step, Epoch(), ": validation ", train::Show(metrics),
                       " after ", FormatSeconds(progress_.seconds), " of training", worse, remark));
}

std::string RunReport::Epoch() const {
  if (steps_per_epoch_ == 0) return "";
  char text[32];
  std::snprintf(text, sizeof(text), " (epoch %.2f)", progress_.epochs);
  return text;
}

std::string RunReport::Worse(const std::string& name, double value) {
  if (value <= best_) {
    if (value < best_) best_step_ = progress_.step;
    best_ = value;
    return "";
  }
  return StrCat("; step ", best_step_, " was better: ", train::Show(name, best_));
}

}  // namespace linnet::train
