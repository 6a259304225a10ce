#include "linnet/server/route.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace linnet::server {
namespace {

using nlohmann::ordered_json;

constexpr char kJson[] = "application/json; charset=utf-8";

}  // namespace

std::string Route::Methods() const {
  std::string methods = get ? "GET, HEAD" : "";
  for (const auto& [has, name] :
       {std::pair(endpoint != nullptr, "POST"), std::pair(remove != nullptr, "DELETE")}) {
    if (has) methods += (methods.empty() ? "" : ", ") + std::string(name);
  }
  return methods;
}

bool Route::Accepts(std::string_view method) const {
  return method == "POST"     ? endpoint != nullptr
         : method == "DELETE" ? remove != nullptr
                              : get && (method == "GET" || method == "HEAD");
}

std::string NameOf(const HttpRequest& request) {
  constexpr int kParts = 3;  // "/v1/states/"
  size_t at = 0;
  for (int i = 0; i < kParts; ++i) at = request.path.find('/', at) + 1;
  return request.path.substr(at);
}

HttpResponse ErrorResponse(int status, const std::string& message, int retry_after) {
  const char* type = status == 401                    ? "authentication_error"
                     : status == 404                  ? "not_found_error"
                     : status == 429                  ? "rate_limit_error"
                     : status >= 400 && status <= 499 ? "invalid_request_error"
                                                      : "server_error";
  const ordered_json error = {
      {"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", status}}}};
  HttpResponse response{.status = status, .type = kJson, .body = Dump(error) + "\n"};
  if (status == 429 || status == 503) {
    response.fields.emplace_back("Retry-After", std::to_string(retry_after));
  }
  return response;
}

HttpResponse JsonResponse(const ordered_json& value) { return JsonTextResponse(Dump(value)); }

HttpResponse JsonTextResponse(const std::string& json) {
  return {.type = kJson, .body = json + "\n"};
}

}  // namespace linnet::server
