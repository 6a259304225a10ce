// POST /v1/couplets: second lines for a first one (docs/http.md).
#ifndef LINNET_TASKS_COUPLET_ENDPOINT_H_
#define LINNET_TASKS_COUPLET_ENDPOINT_H_

#include <memory>
#include <vector>

#include "linnet/tasks/endpoint.h"

namespace linnet::server {

std::unique_ptr<Endpoint> MakeCouplets(std::vector<ServedModel> models, const EndpointLimits& limits);

}  // namespace linnet::server

#endif  // LINNET_TASKS_COUPLET_ENDPOINT_H_
