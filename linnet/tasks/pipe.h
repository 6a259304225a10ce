// A queue for the pieces of an answer, from the threads that compute them to the thread that sends
// them. Neither side waits, so a slow client does not delay the computation. The queue has no
// maximum size; its reader checks size() and cancels the request of a client that is too slow.
//
//   Pipe pipe;
//   pipe.Push("data: ...\n\n");  pipe.Close();                     // some threads compute
//   pipe.OnChange([&] { while (pipe.Take(piece) == Pipe::Got::kPiece) ... });    // another sends
#ifndef LINNET_TASKS_PIPE_H_
#define LINNET_TASKS_PIPE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace linnet::server {

class Pipe {
 public:
  enum class Got { kPiece, kNothing, kEnd };

  // Signals that the prompt has been read and the answer will follow.
  void Begin() {
    Change([&] { begun_ = true; });
  }
  void Push(std::string_view piece) {
    Change([&] { waiting_ += piece; });
  }
  // The last piece and the end come at once.
  void Close(std::string_view last = "") {
    Change([&] {
      waiting_ += last;
      begun_ = closed_ = true;
    });
  }

  // Calls `changed` now, and at the end of each Begin(), Push() and Close(), on the thread of that
  // call. Close() destroys `changed` after calling it.
  void OnChange(std::function<void()> changed) {
    Change([&] { changed_ = std::make_shared<const std::function<void()>>(std::move(changed)); });
  }
  // Takes all waiting bytes. kEnd: the pipe is closed and empty.
  Got Take(std::string& piece) {
    const std::lock_guard lock(mutex_);
    piece.clear();
    if (waiting_.empty()) return closed_ ? Got::kEnd : Got::kNothing;
    piece.swap(waiting_);
    return Got::kPiece;
  }

  bool begun() const {
    const std::lock_guard lock(mutex_);
    return begun_;
  }
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {  // waiting bytes
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }

 private:
  // Calls change() under the lock and then, without the lock, the function of OnChange().
  template <class Function>
  void Change(const Function& change) {
    std::shared_ptr<const std::function<void()>> changed;
    {
      const std::lock_guard lock(mutex_);
      change();
      changed = closed_ ? std::exchange(changed_, nullptr) : changed_;
    }
    if (changed) (*changed)();
  }

  mutable std::mutex mutex_;
  std::shared_ptr<const std::function<void()>> changed_;
  std::string waiting_;  // bytes pushed but not taken yet
  bool begun_ = false, closed_ = false;
};

}  // namespace linnet::server

#endif  // LINNET_TASKS_PIPE_H_
