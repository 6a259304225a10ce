// A progress line for long work: rewritten in place on a terminal, a new line every ten seconds in
// a log.
//
//   ProgressLine progress(std::cerr, isatty(2));
//   while (...) progress.Update(StrCat("step ", step));   // shows at most a few times a second
//   progress.Finish("done");
//
// The caller owns the stream. A ProgressLine always prints; for quiet work, create none.
#ifndef LINNET_BASE_PROGRESS_H_
#define LINNET_BASE_PROGRESS_H_

#include <chrono>
#include <ostream>
#include <string>

namespace linnet {

class ProgressLine {
 public:
  // in_place: overwrite one line (a terminal) instead of adding lines (a log).
  ProgressLine(std::ostream& out, bool in_place) : out_(out), in_place_(in_place) {}
  ~ProgressLine();

  // Whether the next Update() would be shown; lets callers skip building the text.
  bool Due() const;
  void Update(const std::string& text);
  // Shows a permanent line: a milestone (a checkpoint, a validation), or the end.
  void Finish(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  std::ostream& out_;
  const bool in_place_;
  Clock::time_point shown_{};  // time of the last Update() that was shown
  size_t width_ = 0;           // bytes of the current line
};

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace linnet

#endif  // LINNET_BASE_PROGRESS_H_
