#include "deploy/cli/listen_address.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace millrace::deploy::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(FindListenAddress, PortZeroBecomesAFreePort) {
  const auto address = find_listen_address("127.0.0.1:0");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_THAT(*address, StartsWith("127.0.0.1:"));
  EXPECT_NE(*address, "127.0.0.1:0");
  EXPECT_EQ(*find_listen_address(*address), *address);
}

TEST(FindListenAddress, NoticesThatAPortIsInUse) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto taken = find_listen_address("127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(taken.status().ToString(), HasSubstr("in use"));
  close(fd);
}

TEST(FindListenAddress, RefusesWhatIsNoAddress) {
  for (std::string_view text : {"", "8000", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x",
                                "127.0.0.1:70000", "127.0.0.1:80 ", "example.org:80", "::1:80"}) {
    EXPECT_EQ(find_listen_address(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(FindListenAddress, RefusesAnAddressOfAnotherMachine) {
  // 192.0.2.0/24 is reserved for documentation (RFC 5737): no machine has it.
  EXPECT_THAT(find_listen_address("192.0.2.1:0").status().ToString(), HasSubstr("192.0.2.1"));
}

}  // namespace
}  // namespace millrace::deploy::cli
