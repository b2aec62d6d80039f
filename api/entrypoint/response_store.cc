#include "api/entrypoint/response_store.h"

#include <optional>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

constexpr std::size_t kQueue = 1024;
constexpr std::size_t kQueuedBytes = 64u << 20;

absl::Status busy() {
  return absl::UnavailableError("the response store is busy; try again, or set `store` to false");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ResponseStore>> ResponseStore::open(Options options) {
  ASSIGN_OR_RETURN(ResponseTable table, ResponseTable::open(options.path, options.bounds));
  return std::unique_ptr<ResponseStore>(
      new ResponseStore(std::move(table), std::move(options.now_seconds)));
}

ResponseStore::ResponseStore(ResponseTable table, std::function<std::int64_t()> now_seconds)
    : table_(std::move(table)), now_seconds_(std::move(now_seconds)), queue_(kQueue) {
  thread_ = std::thread([this] {
    while (std::optional<std::function<void()>> work = queue_.pop()) (*work)();
  });
}

ResponseStore::~ResponseStore() {
  queue_.close();
  thread_.join();
}

void ResponseStore::put(StoredResponse response, Done done) {
  const std::size_t bytes = response.response.size() + response.input_items.size() +
                            response.output_items.size() + response.events.size();
  // A single response may be larger than the bound: it waits for an empty queue.
  const std::size_t before = queued_bytes_.fetch_add(bytes);
  const bool has_room = before == 0 || before + bytes <= kQueuedBytes;
  const bool is_queued =
      has_room && queue_.try_push([this, response = std::move(response), bytes, done] {
        const absl::Status status = table_.put(response, now_seconds_());
        queued_bytes_ -= bytes;
        done(status);
      });
  if (is_queued) return;
  queued_bytes_ -= bytes;
  done(busy());
}

void ResponseStore::erase(const ResponseName& name, Done done) {
  if (!queue_.try_push([this, name, done] { done(table_.erase(name, now_seconds_())); })) {
    done(busy());
  }
}

void ResponseStore::get(const ResponseName& name, Got got) {
  if (!queue_.try_push([this, name, got] { got(table_.get(name, now_seconds_())); })) got(busy());
}

}  // namespace millrace::api::entrypoint
