// A request whose answer is being computed: passes the pieces from the model's threads on to the
// transport, and ends the work when its time is over or its client has left.
//
//   auto answering =
//       std::make_shared<Answering>(exchange, account, endpoint.Answer(json, account));
//   answering->Start();
//   answering->Expire("no place was free");   // too late
//   answering->Leave();                       // the client has left
#ifndef LINNET_SERVER_ANSWERING_H_
#define LINNET_SERVER_ANSWERING_H_

#include <memory>
#include <mutex>

#include "linnet/server/http_server.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {

// Thread-safe.
class Answering : public std::enable_shared_from_this<Answering> {
 public:
  // Maximum bytes of a stream that wait for its client. One that is so slow counts as gone.
  static constexpr size_t kUnsent = 16 << 20;

  Answering(std::shared_ptr<Exchange> exchange, std::shared_ptr<const Account> account, Reply reply)
      : exchange_(std::move(exchange)), account_(std::move(account)), reply_(std::move(reply)) {}

  const Account& account() const { return *account_; }
  // Begins to pass on the answer.
  void Start();
  // Ends the work: its client gets what there is by now, or, if there is nothing yet, `late`.
  void Expire(const HttpResponse& late);
  void Leave();

 private:
  void Changed();

  const std::shared_ptr<Exchange> exchange_;
  const std::shared_ptr<const Account> account_;
  const Reply reply_;
  std::mutex mutex_;
  // The response has begun; it is complete or given up; the work is canceled.
  bool begun_ = false, over_ = false, canceled_ = false;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_ANSWERING_H_
