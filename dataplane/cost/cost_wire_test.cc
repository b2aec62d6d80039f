#include "dataplane/cost/cost_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "api/proto/engine.pb.h"
#include "common/str_cat.h"

namespace millrace::dataplane::cost {
namespace {

TEST(CostWire, BringsEveryCoefficient) {
  CostModel model;
  double value = 0.5;
  for (const Coefficient& c : kCoefficients) model.*c.value = value++;
  const auto arrived = from_wire(to_wire(model));
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(*arrived, model);
}

TEST(CostWire, RefusesWhatIsNoCost) {
  EXPECT_EQ(from_wire(proto::v1::PrefillCost()).status().code(),
            absl::StatusCode::kInvalidArgument);
  proto::v1::PrefillCost wire = to_wire({.linear = 1});
  wire.set_tail_cross_ns(-1);
  EXPECT_THAT(std::string(message_of(from_wire(wire).status())),
              ::testing::HasSubstr("tail_cross = -1"));
}

}  // namespace
}  // namespace millrace::dataplane::cost
