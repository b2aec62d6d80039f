#include "common/svg/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace millrace::common::svg {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Frame kFrame{
    .width = 200, .height = 100, .left = 20, .right = 10, .top = 5, .bottom = 15};

TEST(Svg, SharesLieBetweenTheMargins) {
  EXPECT_EQ(kFrame.x(0), 20);
  EXPECT_EQ(kFrame.x(1), 190);
  EXPECT_EQ(kFrame.y(0), 85);
  EXPECT_EQ(kFrame.y(0.5), 45);
  EXPECT_EQ(kFrame.y(1), 5);
}

TEST(Svg, AxesHaveALineAndALabelForEachTick) {
  const std::vector<Tick> x = {{0.5, "a<b"}};
  const std::vector<Tick> y = {{1, "7"}};
  const std::string both = axes(kFrame, x, y, Grid::kBoth);
  EXPECT_THAT(both, HasSubstr("<line class='grid' x1='105' y1='85' x2='105' y2='5'/>"));
  EXPECT_THAT(both, HasSubstr("<text x='105' y='103' text-anchor='middle'>a&lt;b</text>"));
  EXPECT_THAT(both, HasSubstr("<line class='grid' x1='20' y1='5' x2='190' y2='5'/>"));
  EXPECT_THAT(both, HasSubstr("<text x='12' y='9' text-anchor='end'>7</text>"));
  const std::string horizontal = axes(kFrame, x, y, Grid::kHorizontal);
  EXPECT_THAT(horizontal, Not(HasSubstr("x2='105'")));
  EXPECT_THAT(horizontal, HasSubstr("a&lt;b"));
}

TEST(Svg, WritesNumbersShortAndTextSafely) {
  EXPECT_EQ(number(1.0 / 3), "0.3333");
  EXPECT_EQ(number(640), "640");
  EXPECT_EQ(escaped("\"<a> & 'b'"), "&quot;&lt;a&gt; &amp; &#39;b&#39;");
}

}  // namespace
}  // namespace millrace::common::svg
