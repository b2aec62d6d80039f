#include "storage/client/store_client.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

#include "common/http/rest_server.h"
#include "common/str_cat.h"
#include "storage/store/simulated_nodes.h"

namespace millrace::storage::client {
namespace {

using namespace std::chrono_literals;
using common::http::RestRequest;
using common::http::RestResponse;
using common::http::RestServer;

Logger silent() {
  return Logger::to_sink("test", LogLevel::kOff, [](std::string_view) {});
}

/// A controller without storage, until it is given a map.
class FakeController {
 public:
  FakeController() {
    server_ = *RestServer::start(
        {.listen = "127.0.0.1:0"},
        {{"GET", "/api/v1/storage/map", [this](const RestRequest&) {
            if (!has_map_) {
              return common::http::rest_error(absl::NotFoundError("this cluster stores no KV"));
            }
            RestResponse response;
            response.body = encode_map(*store::simulated_map(2, 1, 1, 64));
            return response;
          }}});
  }
  ~FakeController() { server_->stop(); }

  std::string url() const { return str_cat("http://", server_->address()); }
  void give_map() { has_map_ = true; }

 private:
  std::atomic<bool> has_map_ = false;
  std::unique_ptr<RestServer> server_;
};

TEST(StoreClient, WithoutAMapEverythingIsAMissAndAMapIsTakenOverWhenItComes) {
  FakeController controller;
  const auto client = *StoreClient::open({.controller_url = controller.url()}, silent());
  EXPECT_EQ(client->map(), nullptr);
  std::promise<std::vector<bool>> answer;
  client->blocks().query({BlockKey{}}, 0ms, 1000ms,
                         [&](std::vector<bool> present) { answer.set_value(std::move(present)); });
  EXPECT_EQ(answer.get_future().get(), std::vector<bool>{false});

  controller.give_map();
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (client->map() == nullptr && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(10ms);
  }
  ASSERT_NE(client->map(), nullptr);
  EXPECT_EQ(client->map()->block_bytes, 64U);
}

TEST(StoreClient, AskedForTheMapItSaysWhoHasNone) {
  FakeController controller;
  const auto client = *StoreClient::open({.controller_url = controller.url()}, silent());
  const absl::Status status = client->fetch_map();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(message_of(status).find(controller.url()), std::string_view::npos) << status;
  controller.give_map();
  EXPECT_TRUE(client->fetch_map().ok());
  EXPECT_NE(client->map(), nullptr);
}

TEST(StoreClient, WithoutAControllerItGoesByTheFile) {
  const std::string path = str_cat(::testing::TempDir(), "store_client.", ::getpid());
  ASSERT_TRUE(save_map(path, *store::simulated_map(2, 1, 1, 64)).ok());
  const auto client = *StoreClient::open({.map_path = path}, silent());
  ASSERT_NE(client->map(), nullptr);
  EXPECT_EQ(client->map()->block_bytes, 64U);
  std::filesystem::remove(path);
}

TEST(StoreClient, RefusesWhatIsNoUrl) {
  const auto client = StoreClient::open({.controller_url = "127.0.0.1:8080"}, silent());
  EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::storage::client
