#pragma once

#include <vector>

#include "common/http/rest_server.h"
#include "controller/server/service.h"

namespace millrace::controller::server {

/// The controller's REST interface (api/admin/openapi.yaml). The service must outlive the server
/// that serves these routes.
std::vector<common::http::RestRoute> routes(Service& service);

}  // namespace millrace::controller::server
