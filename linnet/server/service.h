// The models that a server serves, and the paths that depend on them. The server replaces its
// service when models are reloaded (Server::Reload).
#ifndef LINNET_SERVER_SERVICE_H_
#define LINNET_SERVER_SERVICE_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "linnet/server/route.h"
#include "linnet/server/server.h"

namespace linnet::server {

class Service {
 public:
  // Paths that do not depend on the models. items: by the path before the name.
  struct Routes {
    std::map<std::string, Route> routes, items;
  };

  // keeper: null if no states are kept. It must outlive this object.
  Service(std::vector<Served> models, StateKeeper* keeper, const ServerOptions& options,
          Routes others);
  ~Service() { Stop(); }

  // Ends the remaining requests, and all work of the models. Only tokens may be used after it.
  void Stop();

  // Null if nothing is at this path.
  const Route* Find(const std::string& path) const;
  // The path in metrics. Pages share one label, and so do items and paths without a route, so that
  // clients cannot create metrics at will.
  std::string LabelOf(const std::string& path) const;
  HttpResponse NotFound(const std::string& path) const;
  void AppendMetrics(std::string& text) const;

  // While a token exists, the service is in use. Thread-safe.
  std::shared_ptr<void> Use();
  bool in_use() const { return uses_ > 0; }
  bool idle() const;  // no model has a request
  void CancelAll();
  void Flush();  // waits until all pending snapshots are written

 private:
  void AddModels();

  std::vector<Served> models_;
  std::map<std::string, std::unique_ptr<Endpoint>> endpoints_;  // by path
  std::map<std::string, Route> routes_;                         // by path
  std::map<std::string, Route> items_;                          // by the path before the name
  std::atomic<int> uses_{0};
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_SERVICE_H_
