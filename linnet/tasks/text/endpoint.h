// POST /v1/completions: running text (docs/http.md).
#ifndef LINNET_TASKS_TEXT_ENDPOINT_H_
#define LINNET_TASKS_TEXT_ENDPOINT_H_

#include <memory>
#include <vector>

#include "linnet/tasks/endpoint.h"

namespace linnet::server {

std::unique_ptr<Endpoint> MakeCompletions(std::vector<ServedModel> models, const EndpointLimits& limits);

}  // namespace linnet::server

#endif  // LINNET_TASKS_TEXT_ENDPOINT_H_
