#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/http/rest_server.h"
#include "common/str_cat.h"
#include "storage/link/map_poller.h"
#include "storage/link/node_link.h"

namespace millrace::storage::link {
namespace {

using namespace std::chrono_literals;
using common::http::RestRequest;
using common::http::RestResponse;
using common::http::RestServer;

StorageMap map_at(std::uint64_t epoch) {
  StorageMap map;
  map.cluster_id = "c1";
  map.epoch = epoch;
  map.data_shards = 1;
  map.parity_shards = 1;
  map.block_bytes = 100;
  return map;
}

/// The two answers of a controller that matter here.
class FakeController {
 public:
  FakeController() {
    server_ =
        *RestServer::start({.listen = "127.0.0.1:0"},
                           {{"GET", "/api/v1/storage/map",
                             [this](const RestRequest& request) { return map(request); }},
                            {"POST", "/api/v1/storage/nodes/{id}/report",
                             [this](const RestRequest& request) { return report(request); }}});
  }
  ~FakeController() { server_->stop(); }

  std::string url() const { return str_cat("http://", server_->address()); }
  void set_epoch(std::uint64_t epoch) { epoch_ = epoch; }
  void refuse(bool is_refusing) { is_refusing_ = is_refusing; }
  int maps() const { return maps_; }
  std::string last_report() {
    std::lock_guard lock(mutex_);
    return last_report_;
  }

 private:
  RestResponse map(const RestRequest& request) {
    const std::uint64_t after = std::stoull(request.query.at("after"));
    RestResponse response;
    response.status = epoch_ > after ? 200 : 204;
    if (epoch_ <= after) return response;
    ++maps_;
    response.body = encode_map(map_at(epoch_));
    return response;
  }
  RestResponse report(const RestRequest& request) {
    if (is_refusing_) {
      return common::http::rest_error(absl::FailedPreconditionError("another cluster"));
    }
    std::lock_guard lock(mutex_);
    last_report_ = str_cat(request.path_parameters.at("id"), " ", request.body);
    RestResponse response;
    api::admin::StorageReportReply reply;
    reply.map_epoch = epoch_;
    reply.report_interval = 20ms;
    reply.scrub_request = 7;
    response.body = to_json(reply);
    return response;
  }

  std::atomic<std::uint64_t> epoch_{1};
  std::atomic<int> maps_{0};
  std::atomic<bool> is_refusing_{false};
  std::mutex mutex_;
  std::string last_report_;
  std::unique_ptr<RestServer> server_;
};

Logger silent() {
  return Logger::to_sink("test", LogLevel::kOff, [](std::string_view) {});
}

template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
  return condition();
}

TEST(MapPoller, FollowsTheControllersMap) {
  FakeController controller;
  const auto cell = *MapCell::open("");
  MapPoller poller({.controller_url = controller.url(), .interval = 100ms}, *cell, silent());
  ASSERT_TRUE(eventually([&] { return cell->current() != nullptr; }));
  controller.set_epoch(5);
  EXPECT_TRUE(eventually([&] { return cell->current()->epoch == 5; }));
  EXPECT_EQ(controller.maps(), 2) << "an unchanged map is not sent again";
}

TEST(MapPoller, AsksAtOnceWhenToldTo) {
  FakeController controller;
  const auto cell = *MapCell::open("");
  MapPoller poller({.controller_url = controller.url(), .interval = 3600s}, *cell, silent());
  ASSERT_TRUE(eventually([&] { return cell->current() != nullptr; }));
  controller.set_epoch(5);
  poller.refresh();
  EXPECT_TRUE(eventually([&] { return cell->current()->epoch == 5; }));
}

TEST(MapPoller, TellsWhoListensOfEveryNewMap) {
  FakeController controller;
  const auto cell = *MapCell::open("");
  MapPoller poller({.controller_url = controller.url(), .interval = 100ms}, *cell, silent());
  std::atomic<int> told{0};
  auto listener = std::make_unique<MapListener>(poller, [&] { ++told; });
  ASSERT_TRUE(eventually([&] { return told == 1; }));
  controller.set_epoch(5);
  ASSERT_TRUE(eventually([&] { return told == 2; }));
  EXPECT_EQ(cell->current()->epoch, 5U);
  listener.reset();
  controller.set_epoch(6);
  ASSERT_TRUE(eventually([&] { return cell->current()->epoch == 6; }));
  EXPECT_EQ(told, 2);
}

TEST(NodeLink, ReportsTakesTheMapAndHandsOnWishes) {
  FakeController controller;
  const auto cell = *MapCell::open("");
  std::atomic<std::uint64_t> scrub{0};
  NodeLink link(
      {.controller_url = controller.url(), .node_id = "storage-3"}, *cell,
      [] {
        api::admin::StorageReport report;
        report.address = "here:1";
        return report;
      },
      [&](const api::admin::StorageReportReply& reply) {
        EXPECT_GE(cell->current()->epoch, reply.map_epoch);
        scrub = reply.scrub_request;
      },
      silent());
  ASSERT_TRUE(eventually([&] { return scrub == 7; }));
  EXPECT_TRUE(controller.last_report().starts_with("storage-3 "));
  EXPECT_NE(controller.last_report().find("here:1"), std::string::npos);
  controller.set_epoch(9);
  EXPECT_TRUE(eventually([&] { return cell->current()->epoch == 9; }));
  EXPECT_TRUE(eventually([&] { return link.health().ok(); }));
}

TEST(NodeLink, ARefusalIsSaidAndTriedAgain) {
  FakeController controller;
  controller.refuse(true);
  const auto cell = *MapCell::open("");
  std::atomic<bool> is_answered{false};
  NodeLink link(
      {.controller_url = controller.url(), .node_id = "storage-3"}, *cell,
      [] {
        api::admin::StorageReport report;
        report.address = "here:1";
        return report;
      },
      [&](const api::admin::StorageReportReply&) { is_answered = true; }, silent());
  EXPECT_TRUE(eventually(
      [&] { return message_of(link.health()).find("another cluster") != std::string_view::npos; }));
  EXPECT_FALSE(is_answered);
  controller.refuse(false);
  EXPECT_TRUE(eventually([&] { return is_answered.load(); }));
}

}  // namespace
}  // namespace millrace::storage::link
