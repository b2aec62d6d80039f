// The source's service and the destination's client over a real socket.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "common/str_cat.h"
#include "dataplane/transfer/kv_client.h"
#include "dataplane/transfer/kv_service.h"

namespace millrace::dataplane::transfer {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class Transfer : public ::testing::Test {
 protected:
  Transfer()
      : exports_(*ExportTable::open(
            {.host_id = "host-a",
             .worker_id = str_cat("transfer-",
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                                  "-", ::getpid())},
            1, {})),
        service_(make_kv_service(identity_, *exports_)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
  }

  Handover offer(const std::vector<std::byte>& bytes) {
    const auto ticket = exports_->add(
        {1, "r"}, bytes.size(),
        [&](std::span<std::byte> out) {
          std::memcpy(out.data(), bytes.data(), bytes.size());
          return absl::OkStatus();
        },
        std::chrono::steady_clock::now());
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return {.source_worker = "source",
            .source_address = str_cat("127.0.0.1:", port_),
            .host_id = "host-a",
            .export_id = ticket->export_id,
            .shm_name = ticket->shm_name,
            .bytes = ticket->bytes,
            .checksum = ticket->checksum,
            .layout_id = "layout"};
  }

  static void flip_a_byte(const std::string& shm_name) {
    const int fd = ::shm_open(str_cat("/", shm_name).c_str(), O_RDWR, 0);
    ASSERT_GE(fd, 0);
    char byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, 100), 1);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(::pwrite(fd, &byte, 1, 100), 1);
    ::close(fd);
  }

  KvClient client(const std::string& host_id, PeerIdentity identity = {1, "nano", "digest"}) {
    return KvClient({.identity = std::move(identity), .host_id = host_id, .fetch_timeout = 30s});
  }

  const PeerIdentity identity_{1, "nano", "digest"};
  std::unique_ptr<ExportTable> exports_;
  std::unique_ptr<grpc::Service> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  CancelFlag not_cancelled_{false};
};

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST_F(Transfer, BothPathsBringEqualBytesOfEverySize) {
  KvClient same_host = client("host-a");
  KvClient other_host = client("host-b");
  for (const std::size_t size : {std::size_t{1}, std::size_t{4096}, kKvChunkBytes - 1,
                                 kKvChunkBytes, kKvChunkBytes + 1, 3 * kKvChunkBytes + 77}) {
    const std::vector<std::byte> bytes = random_bytes(size);
    const Handover handover = offer(bytes);
    const auto mapped = same_host.fetch(handover, 30s, not_cancelled_);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    EXPECT_EQ(mapped->path(), FetchPath::kSharedMemory);
    EXPECT_TRUE(std::ranges::equal(mapped->bytes(), bytes));
    const auto streamed = other_host.fetch(handover, 30s, not_cancelled_);
    ASSERT_TRUE(streamed.ok()) << streamed.status();
    EXPECT_EQ(streamed->path(), FetchPath::kStream);
    EXPECT_TRUE(std::ranges::equal(streamed->bytes(), bytes));
    EXPECT_TRUE(other_host.release(handover.source_address, handover.export_id).ok());
    EXPECT_EQ(exports_->usage().exports, 0);
  }
}

TEST_F(Transfer, ACorruptByteIsDataLossOnBothPaths) {
  const Handover handover = offer(random_bytes(5000));
  flip_a_byte(handover.shm_name);
  for (const char* host : {"host-a", "host-b"}) {
    const auto fetched = client(host).fetch(handover, 30s, not_cancelled_);
    EXPECT_EQ(fetched.status().code(), absl::StatusCode::kDataLoss) << fetched.status();
    EXPECT_THAT(std::string(fetched.status().message()), HasSubstr("checksum"));
  }
}

TEST_F(Transfer, AnotherSizeThanAnnouncedIsDataLossOnBothPaths) {
  for (const std::uint64_t announced : {4999u, 5001u}) {
    Handover handover = offer(random_bytes(5000));
    handover.bytes = announced;
    for (const char* host : {"host-a", "host-b"}) {
      EXPECT_EQ(client(host).fetch(handover, 30s, not_cancelled_).status().code(),
                absl::StatusCode::kDataLoss);
    }
  }
}

TEST_F(Transfer, AReleasedExportIsUnavailableOnBothPaths) {
  const Handover handover = offer(random_bytes(5000));
  EXPECT_TRUE(exports_->release(handover.export_id));
  for (const char* host : {"host-a", "host-b"}) {
    EXPECT_EQ(client(host).fetch(handover, 30s, not_cancelled_).status().code(),
              absl::StatusCode::kUnavailable);
  }
  // Releasing again is fine.
  EXPECT_TRUE(client("host-b").release(handover.source_address, handover.export_id).ok());
}

TEST_F(Transfer, ADeadSourceIsUnavailableAtOnce) {
  const Handover handover = offer(random_bytes(5000));
  server_->Shutdown(std::chrono::system_clock::now());
  const auto start = std::chrono::steady_clock::now();
  const auto fetched = client("host-b").fetch(handover, 30s, not_cancelled_);
  EXPECT_EQ(fetched.status().code(), absl::StatusCode::kUnavailable) << fetched.status();
  EXPECT_THAT(std::string(fetched.status().message()), HasSubstr(handover.source_address));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
  EXPECT_EQ(client("host-b").release(handover.source_address, handover.export_id).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(Transfer, AnotherIdentityIsRefusedWithBothValues) {
  const Handover handover = offer(random_bytes(5000));
  const auto model = client("host-b", {1, "other", "digest"}).fetch(handover, 30s, not_cancelled_);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(model.status().message()),
              ::testing::AllOf(HasSubstr("other"), HasSubstr("nano")));
  const auto version = client("host-b", {2, "nano", "digest"}).fetch(handover, 30s, not_cancelled_);
  EXPECT_THAT(std::string(version.status().message()),
              ::testing::AllOf(HasSubstr("version 2"), HasSubstr("ours, 1")));
  const auto digest =
      client("host-b", {1, "nano", "\x01\xff"}).fetch(handover, 30s, not_cancelled_);
  EXPECT_THAT(std::string(digest.status().message()),
              ::testing::AllOf(HasSubstr("01ff"), HasSubstr("646967657374")));
}

TEST_F(Transfer, ACancelledFetchStops) {
  const Handover handover = offer(random_bytes(3 * kKvChunkBytes));
  CancelFlag cancelled{true};
  EXPECT_EQ(client("host-b").fetch(handover, 30s, cancelled).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_F(Transfer, AnAnnouncementOverTheLimitIsRefused) {
  Handover handover = offer(random_bytes(100));
  handover.bytes = std::uint64_t{1} << 50;
  for (const char* host : {"host-a", "host-b"}) {
    EXPECT_EQ(client(host).fetch(handover, 30s, not_cancelled_).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace::dataplane::transfer
