// A request whose answer is being computed. Answering passes the answer's pieces from the model's
// threads to the transport, and cancels the work when the request's time is over or its client has
// left.
//
//   auto answering =
//       std::make_shared<Answering>(exchange, account, endpoint.Answer(json, account));
//   answering->Start();
//   answering->Expire(late);     // the request's time is over
//   answering->Leave();          // the client has left
#ifndef LINNET_SERVER_ANSWERING_H_
#define LINNET_SERVER_ANSWERING_H_

#include <memory>
#include <mutex>
#include <utility>

#include "linnet/server/http_server.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {

// Thread-safe.
class Answering : public std::enable_shared_from_this<Answering> {
 public:
  // Maximum number of unsent bytes of a stream. A client that falls further behind counts as gone.
  static constexpr size_t kUnsent = 16 << 20;

  // lease: released before the client gets the end of its answer.
  Answering(std::shared_ptr<Exchange> exchange, std::shared_ptr<const Account> account, Reply reply,
            std::shared_ptr<void> lease = {})
      : exchange_(std::move(exchange)),
        account_(std::move(account)),
        reply_(std::move(reply)),
        lease_(std::move(lease)) {}

  const Account& account() const { return *account_; }
  // Passes the answer to the transport from now on.
  void Start();
  // Cancels the work. The client gets the tokens generated so far, or `late` if the answer has not
  // begun.
  void Expire(const HttpResponse& late);
  // Cancels the work, because the client has left.
  void Leave();
  // The request is over: releases the lease if the answer did not come to its end.
  void Release();

 private:
  void Changed();

  const std::shared_ptr<Exchange> exchange_;
  const std::shared_ptr<const Account> account_;
  const Reply reply_;
  std::mutex mutex_;
  std::shared_ptr<void> lease_;
  // begun_: the response has begun. over_: the response is complete, or nobody awaits it any more.
  // canceled_: the work is canceled.
  bool begun_ = false, over_ = false, canceled_ = false;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_ANSWERING_H_
