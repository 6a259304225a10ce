// A queue for the pieces of an answer, from the thread that computes them to the thread that sends
// them. The writer never waits, so a slow reader delays nobody. The queue has no limit of its own:
// the request limits the length of the answer.
//
//   Pipe pipe;
//   pipe.Push("data: ...\n\n");  pipe.Close();                    // one thread
//   while (pipe.Pop(piece, 100ms) != Pipe::Got::kEnd) ...         // another
#ifndef LINNET_TASKS_PIPE_H_
#define LINNET_TASKS_PIPE_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>

namespace linnet::server {

class Pipe {
 public:
  enum class Got { kPiece, kNothing, kEnd };

  // Signals that the prompt has been read and the answer will follow.
  void Begin() {
    const std::lock_guard lock(mutex_);
    begun_ = true;
    changed_.notify_all();
  }
  void Push(std::string_view piece) {
    const std::lock_guard lock(mutex_);
    waiting_ += piece;
    changed_.notify_all();
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    begun_ = closed_ = true;
    changed_.notify_all();
  }

  // Waits up to `patience` for Begin() or Close(); returns whether either was called.
  bool WaitForBegin(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return begun_; });
  }
  // Takes all waiting bytes. Returns kNothing if none came within `patience`, kEnd once the pipe is
  // closed and empty.
  Got Pop(std::string& piece, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return closed_ || !waiting_.empty(); });
    piece.clear();
    if (waiting_.empty()) return closed_ ? Got::kEnd : Got::kNothing;
    piece.swap(waiting_);
    return Got::kPiece;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;
  bool begun_ = false, closed_ = false;
};

}  // namespace linnet::server

#endif  // LINNET_TASKS_PIPE_H_
