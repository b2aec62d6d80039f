#include "common/mailbox.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace millrace {
namespace {

TEST(Mailbox, RefusesWhenFull) {
  Mailbox<int> box(2);
  EXPECT_TRUE(box.try_push(1));
  EXPECT_TRUE(box.try_push(2));
  EXPECT_FALSE(box.try_push(3));
  EXPECT_EQ(box.try_pop(), 1);
  EXPECT_TRUE(box.try_push(3));
  EXPECT_EQ(box.try_pop(), 2);
  EXPECT_EQ(box.try_pop(), 3);
  EXPECT_EQ(box.try_pop(), std::nullopt);
}

TEST(Mailbox, CloseWakesWaitersAndKeepsWhatIsQueued) {
  Mailbox<int> box(4);
  ASSERT_TRUE(box.try_push(1));
  std::vector<int> seen;
  std::thread reader([&] {
    while (auto value = box.pop()) seen.push_back(*value);
  });
  ASSERT_TRUE(box.try_push(2));
  box.close();
  reader.join();
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
  EXPECT_FALSE(box.try_push(3));
}

TEST(Mailbox, PopForReturnsAtTheTimeout) {
  Mailbox<int> box(1);
  EXPECT_EQ(box.pop_for(std::chrono::milliseconds(1)), std::nullopt);
}

}  // namespace
}  // namespace millrace
