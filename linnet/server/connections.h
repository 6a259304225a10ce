// Thread pool for connections: one thread per connection, started on demand and ended after some
// idle time. cpp-httplib's own pool has a fixed size, so that many idle clients would block it.
#ifndef LINNET_SERVER_CONNECTIONS_H_
#define LINNET_SERVER_CONNECTIONS_H_

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace linnet::server {

class Connections : public httplib::TaskQueue {
 public:
  // most: the maximum number of threads; further connections wait. `open` counts active
  // connections.
  Connections(size_t most, std::atomic<size_t>& open) : most_(most), open_(open) {}

  void enqueue(std::function<void()> connection) override {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(connection));
    if (idle_ < waiting_.size() && threads_ < most_) {
      try {
        std::thread([this] { Work(); }).detach();
        ++threads_;
      } catch (const std::system_error&) {  // too many threads: an existing one serves it
      }
    }
    wake_.notify_one();
  }

  void shutdown() override {
    std::unique_lock lock(mutex_);
    stop_ = true;
    wake_.notify_all();
    ended_.wait(lock, [&] { return threads_ == 0; });
  }

 private:
  void Work() {
    constexpr std::chrono::seconds kPatience(10);
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      wake_.wait_for(lock, kPatience, [&] { return stop_ || !waiting_.empty(); });
      --idle_;
      if (waiting_.empty()) break;
      const std::function<void()> connection = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      ++open_;
      connection();
      --open_;
      lock.lock();
    }
    --threads_;
    ended_
        .notify_all();  // under the lock: shutdown() must not return until the last thread is done
  }

  const size_t most_;
  std::atomic<size_t>& open_;
  std::mutex mutex_;
  std::condition_variable wake_, ended_;
  std::deque<std::function<void()>> waiting_;
  size_t threads_ = 0, idle_ = 0;
  bool stop_ = false;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_CONNECTIONS_H_
