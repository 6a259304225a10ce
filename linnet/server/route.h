// What is at a path of the server, and the JSON responses of all paths.
#ifndef LINNET_SERVER_ROUTE_H_
#define LINNET_SERVER_ROUTE_H_

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "linnet/server/http_server.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {

// The handlers of a path: `get` answers GET and HEAD, `endpoint` POST, and `remove` DELETE.
struct Route {
  std::function<HttpResponse(const HttpRequest&)> get = {}, remove = {};
  Endpoint* endpoint = nullptr;
  bool needs_key = true;
  bool for_operator = false;  // clients that have keys of their own (clients.h) may not use it
  bool is_page = false;       // of a site (site.h); metrics count all pages together

  // The methods that the path accepts: "GET, HEAD, POST".
  std::string Methods() const;
  bool Accepts(std::string_view method) const;
};

// The name of an item in a path such as /v1/states/NAME.
std::string NameOf(const HttpRequest& request);

// An error in the format of OpenAI's clients.
HttpResponse ErrorResponse(int status, const std::string& message, int retry_after = 1);
HttpResponse JsonResponse(const nlohmann::ordered_json& value);
HttpResponse JsonTextResponse(const std::string& json);

}  // namespace linnet::server

#endif  // LINNET_SERVER_ROUTE_H_
