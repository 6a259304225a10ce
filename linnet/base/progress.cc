#include "linnet/base/progress.h"

namespace linnet {

ProgressLine::~ProgressLine() {
  if (in_place_ && width_ > 0) out_ << '\n' << std::flush;
}

bool ProgressLine::Due() const {
  const auto interval = std::chrono::milliseconds(in_place_ ? 200 : 10000);
  return shown_ == Clock::time_point{} || Clock::now() - shown_ >= interval;
}

void ProgressLine::Update(const std::string& text) {
  if (!Due()) return;
  shown_ = Clock::now();
  if (in_place_) {
    const size_t blanks = width_ > text.size() ? width_ - text.size() : 0;
    out_ << '\r' << text << std::string(blanks, ' ') << std::flush;
    width_ = text.size();
  } else {
    out_ << text << '\n' << std::flush;
  }
}

void ProgressLine::Finish(const std::string& text) {
  if (in_place_ && width_ > 0) out_ << '\r' << std::string(width_, ' ') << '\r';
  width_ = 0;
  out_ << text << '\n' << std::flush;
}

}  // namespace linnet
