#include "common/process/shared_region.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>

#include "common/str_cat.h"

namespace millrace {
namespace {

std::string test_name(std::string_view what) {
  return str_cat("millrace-region-test-", ::getpid(), "+", what);
}

TEST(SharedRegion, BytesOfOneMappingAreThoseOfAllOthers) {
  auto owner = SharedRegion::create(test_name("a"), 8192);
  ASSERT_TRUE(owner.ok()) << owner.status();
  const auto reader = SharedRegion::open(test_name("a"), 8192);
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto writer = SharedRegion::open_writable(test_name("a"), 8192);
  ASSERT_TRUE(writer.ok()) << writer.status();
  owner->writable_bytes()[5000] = std::byte{1};
  writer->writable_bytes()[5001] = std::byte{2};
  EXPECT_EQ(reader->bytes()[5000], std::byte{1});
  EXPECT_EQ(reader->bytes()[5001], std::byte{2});
}

TEST(SharedRegion, EndsWithItsCreatorAlone) {
  {
    auto owner = SharedRegion::create(test_name("b"), 4096);
    ASSERT_TRUE(owner.ok()) << owner.status();
    { ASSERT_TRUE(SharedRegion::open_writable(test_name("b"), 4096).ok()); }
    EXPECT_TRUE(SharedRegion::open(test_name("b"), 4096).ok());
    EXPECT_EQ(SharedRegion::create(test_name("b"), 4096).status().code(),
              absl::StatusCode::kAlreadyExists);
  }
  EXPECT_EQ(SharedRegion::open(test_name("b"), 4096).status().code(), absl::StatusCode::kNotFound);
}

TEST(SharedRegion, RefusesAnotherSizeAndForeignNames) {
  auto owner = SharedRegion::create(test_name("c"), 4096);
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_EQ(SharedRegion::open(test_name("c"), 8192).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(SharedRegion::open("millrace-../etc", 4096).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedRegion::create("else", 4096).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharedRegion, SaysWhenTheHostHasNoRoom) {
  const auto region = SharedRegion::create(test_name("d"), std::size_t{1} << 46);
  EXPECT_EQ(region.status().code(), absl::StatusCode::kResourceExhausted) << region.status();
  // What could not be had leaves no name behind.
  EXPECT_EQ(SharedRegion::open(test_name("d"), 4096).status().code(), absl::StatusCode::kNotFound);
}

TEST(SharedRegion, RemovesWhatADeadProcessLeft) {
  auto owner = SharedRegion::create(test_name("e-1"), 4096);
  ASSERT_TRUE(owner.ok()) << owner.status();
  EXPECT_EQ(remove_shared_regions(test_name("e-")), 1);
  EXPECT_EQ(SharedRegion::open(test_name("e-1"), 4096).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace millrace
