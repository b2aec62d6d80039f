#include "dataplane/transfer/export_table.h"

#include <utility>

#include "api/admin/id.h"
#include "common/str_cat.h"
#include "storage/ec/crc32c.h"

namespace millrace::dataplane::transfer {

absl::StatusOr<std::unique_ptr<ExportTable>> ExportTable::open(
    const api::admin::SharedMemoryOwner& self, std::uint32_t incarnation,
    const ExportLimits& limits) {
  for (const std::string& id : {self.host_id, self.worker_id}) {
    if (!api::admin::is_plain_id(id)) return api::admin::plain_id_error(id);
  }
  const std::string prefix = api::admin::shared_memory_prefix(self);
  remove_shared_regions(prefix);
  return std::unique_ptr<ExportTable>(new ExportTable(prefix, incarnation, limits));
}

ExportTable::ExportTable(std::string name_prefix, std::uint32_t incarnation,
                         const ExportLimits& limits)
    : name_prefix_(std::move(name_prefix)),
      id_base_(static_cast<std::uint64_t>(incarnation) << 32),
      limits_(limits) {}

absl::StatusOr<ExportTicket> ExportTable::add(
    const ExportOwner& owner, std::size_t bytes,
    const std::function<absl::Status(std::span<std::byte>)>& fill, TimePoint now) {
  if (bytes > limits_.max_bytes) {
    return absl::InvalidArgumentError(
        str_cat("an export of ", bytes, " bytes exceeds the limit of ", limits_.max_bytes));
  }
  ExportTicket ticket;
  ticket.bytes = bytes;
  {
    std::lock_guard lock(mutex_);
    if (usage_.exports >= limits_.max_exports || usage_.bytes + bytes > limits_.max_bytes) {
      return absl::ResourceExhaustedError(str_cat("no room for an export of ", bytes, " bytes: ",
                                                  usage_.exports, " exports hold ", usage_.bytes));
    }
    ++usage_.exports;
    usage_.bytes += bytes;
    ticket.export_id = id_base_ | next_++;
  }
  ticket.shm_name = str_cat(name_prefix_, ticket.export_id);
  absl::StatusOr<SharedRegion> region = SharedRegion::create(ticket.shm_name, bytes);
  absl::Status status = region.status();
  if (region.ok()) status = fill(region->writable_bytes());
  if (!status.ok()) {
    give_back(bytes);
    return status;
  }
  ticket.checksum = storage::ec::crc32c(region->bytes());
  auto shared = std::make_shared<const SharedRegion>(*std::move(region));
  std::lock_guard lock(mutex_);
  entries_.emplace(
      ticket.export_id,
      Entry{.owner = owner, .deadline = now + limits_.time_to_live, .region = std::move(shared)});
  return ticket;
}

absl::StatusOr<std::shared_ptr<const SharedRegion>> ExportTable::find(
    std::uint64_t export_id) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(export_id);
  if (found == entries_.end()) {
    return absl::NotFoundError(str_cat("export ", export_id, " is not (or no longer) here"));
  }
  return found->second.region;
}

bool ExportTable::release(std::uint64_t export_id) {
  std::map<std::uint64_t, Entry>::node_type dropped;  // unmapped after the lock is gone
  std::lock_guard lock(mutex_);
  dropped = entries_.extract(export_id);
  if (dropped.empty()) return false;
  --usage_.exports;
  usage_.bytes -= dropped.mapped().region->bytes().size();
  return true;
}

int ExportTable::release_owner(const ExportOwner& owner) {
  return release_if([&](const Entry& entry) { return entry.owner == owner; });
}

int ExportTable::release_stream(std::uint64_t stream) {
  return release_if([&](const Entry& entry) { return entry.owner.stream == stream; });
}

int ExportTable::expire(TimePoint now) {
  return release_if([&](const Entry& entry) { return entry.deadline <= now; });
}

int ExportTable::release_if(const std::function<bool(const Entry&)>& is_dropped) {
  std::vector<Entry> dropped;  // unmapped after the lock is gone
  std::lock_guard lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!is_dropped(it->second)) {
      ++it;
      continue;
    }
    --usage_.exports;
    usage_.bytes -= it->second.region->bytes().size();
    dropped.push_back(std::move(it->second));
    it = entries_.erase(it);
  }
  return static_cast<int>(dropped.size());
}

void ExportTable::give_back(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  --usage_.exports;
  usage_.bytes -= bytes;
}

ExportUsage ExportTable::usage() const {
  std::lock_guard lock(mutex_);
  return usage_;
}

}  // namespace millrace::dataplane::transfer
