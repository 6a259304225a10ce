#include "linnet/server/answering.h"

#include <string>
#include <utility>

namespace linnet::server {
namespace {

HttpResponse Head(int status, const char* type) {
  return {.status = status,
          .type = type,
          .fields = {{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}}};
}

}  // namespace

void Answering::Start() {
  reply_.pipe->OnChange([self = shared_from_this()] { self->Changed(); });
}

// Called by Start(), then on the model's threads whenever the pipe changes. Decides under the lock
// and acts after releasing it: the transport, when called, may call Leave(), which locks as well.
void Answering::Changed() {
  Pipe& pipe = *reply_.pipe;
  bool begins = false, too_slow = false, whole = false;
  if (pipe.closed()) Release();
  {
    const std::lock_guard lock(mutex_);
    if (over_ || !pipe.begun()) return;
    if (reply_.events) {
      begins = !std::exchange(begun_, true);
      too_slow = pipe.size() > kUnsent;
    } else {
      begun_ = true;
      whole = pipe.closed();
    }
    over_ = too_slow || whole;
    canceled_ = canceled_ || too_slow;
  }
  if (whole) {
    HttpResponse response = Head(*reply_.status, "application/json; charset=utf-8");
    pipe.Take(response.body);
    exchange_->Answer(std::move(response));
  } else if (too_slow) {
    reply_.worker->Cancel(reply_.request);
    exchange_->Abort();
  } else if (begins) {
    const auto next = [pipe = reply_.pipe, of = weak_from_this()](std::string& piece) {
      const Pipe::Got got = pipe->Take(piece);
      // The piece may be the last one, and the client may act on it before it gets the end.
      const auto self = pipe->closed() ? of.lock() : nullptr;
      if (self) self->Release();
      return got == Pipe::Got::kEnd     ? Exchange::Next::kEnd
             : got == Pipe::Got::kPiece ? Exchange::Next::kPiece
                                        : Exchange::Next::kNothing;
    };
    exchange_->Stream(Head(200, "text/event-stream; charset=utf-8"), next);
  } else if (reply_.events) {
    exchange_->Wake();
  }
}

void Answering::Release() {
  std::shared_ptr<void> lease;  // ends after the lock
  const std::lock_guard lock(mutex_);
  lease = std::move(lease_);
}

void Answering::Expire(const HttpResponse& late) {
  bool refused = false;
  {
    const std::lock_guard lock(mutex_);
    if (over_ || std::exchange(canceled_, true)) return;
    over_ = refused = !begun_;
  }
  reply_.worker->Cancel(reply_.request);
  if (refused) Release();
  if (refused) exchange_->Answer(late);
}

void Answering::Leave() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    if (std::exchange(canceled_, true)) return;
  }
  reply_.worker->Cancel(reply_.request);
}

}  // namespace linnet::server
