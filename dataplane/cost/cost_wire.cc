#include "dataplane/cost/cost_wire.h"

#include "api/proto/engine.pb.h"
#include "common/status_macros.h"

namespace millrace::dataplane::cost {

proto::v1::PrefillCost to_wire(const CostModel& model) {
  proto::v1::PrefillCost wire;
  wire.set_quadratic_ns(model.quadratic);
  wire.set_cross_ns(model.cross);
  wire.set_linear_ns(model.linear);
  wire.set_fixed_ns(model.fixed);
  wire.set_tail_ns(model.tail);
  wire.set_tail_cross_ns(model.tail_cross);
  return wire;
}

absl::StatusOr<CostModel> from_wire(const proto::v1::PrefillCost& wire) {
  const CostModel model{.quadratic = wire.quadratic_ns(),
                        .cross = wire.cross_ns(),
                        .linear = wire.linear_ns(),
                        .fixed = wire.fixed_ns(),
                        .tail = wire.tail_ns(),
                        .tail_cross = wire.tail_cross_ns()};
  RETURN_IF_ERROR(check(model));
  return model;
}

}  // namespace millrace::dataplane::cost
