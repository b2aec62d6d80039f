#include "storage/disk/simulated_disk.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "storage/disk/slot_file.h"

namespace millrace::storage::disk {
namespace {

constexpr std::uint64_t kPage = 4096;

}  // namespace

void SimulatedDisk::set_fault(Fault fault) {
  std::lock_guard lock(mutex_);
  fault_ = fault;
}

void SimulatedDisk::cut_power_after(std::uint64_t changes) {
  std::lock_guard lock(mutex_);
  cut_at_ = changes_ + changes;
}

bool SimulatedDisk::is_cut() const {
  std::lock_guard lock(mutex_);
  return is_cut_;
}

std::uint64_t SimulatedDisk::changes() const {
  std::lock_guard lock(mutex_);
  return changes_;
}

absl::Status SimulatedDisk::before_change(bool is_sync) {
  if (!is_cut_ && cut_at_ && changes_ >= *cut_at_) is_cut_ = true;
  if (is_cut_) return absl::UnavailableError("the power is off");
  ++changes_;
  switch (fault_) {
    case Fault::kFull:
      return absl::ResourceExhaustedError("No space left on the simulated device");
    case Fault::kReadOnly:
      return absl::PermissionDeniedError("Read-only file system, simulated");
    case Fault::kGone:
      return absl::UnavailableError("the simulated device is gone");
    case Fault::kSyncFails:
      if (is_sync) return absl::DataLossError("the simulated sync failed");
      break;
    case Fault::kNone:
      break;
  }
  return absl::OkStatus();
}

void SimulatedDisk::apply_lost_pages(File& file) {
  // The size is a fact of its own: it may have become durable without the bytes, which are then
  // zeros.
  const std::size_t old_size = file.durable.size();
  const std::size_t new_size = file.now.size();
  std::vector<std::byte> after = file.durable;
  after.resize(random_() % 2 == 0 ? new_size : std::max(std::min(old_size, new_size), old_size));
  for (const std::uint64_t page : file.unsynced) {
    const std::size_t from = page * kPage;
    const std::size_t to = std::min({from + kPage, after.size(), new_size});
    if (from >= to) continue;
    std::size_t kept = 0;  // bytes of the new content
    switch (random_() % 3) {
      case 0:
        break;
      case 1:
        kept = to - from;
        break;
      default:
        kept = random_() % (to - from + 1);
    }
    std::copy_n(file.now.begin() + static_cast<std::ptrdiff_t>(from), kept,
                after.begin() + static_cast<std::ptrdiff_t>(from));
  }
  file.now = after;
  file.durable = std::move(after);
  file.unsynced.clear();
}

void SimulatedDisk::apply(const NameChange& change, std::map<std::string, FileId>& names) {
  if (!change.removed.empty()) names.erase(change.removed);
  if (!change.added.empty()) names[change.added] = change.file;
}

void SimulatedDisk::restart() {
  std::lock_guard lock(mutex_);
  const std::size_t kept = random_() % (unsynced_names_.size() + 1);
  for (std::size_t i = 0; i < kept; ++i) apply(unsynced_names_[i], durable_names_);
  unsynced_names_.clear();
  names_ = durable_names_;
  std::set<FileId> named;
  for (const auto& [name, file] : names_) named.insert(file);
  for (auto at = files_.begin(); at != files_.end();) {
    if (named.count(at->first) == 0) {
      at = files_.erase(at);
    } else {
      apply_lost_pages(at->second);
      ++at;
    }
  }
  is_cut_ = false;
  cut_at_.reset();
}

absl::StatusOr<SimulatedDisk::FileId> SimulatedDisk::create(const std::string& path) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(before_change());
  const FileId file = next_file_++;
  files_[file];
  const NameChange change{.removed = {}, .added = path, .file = file};
  apply(change, names_);
  unsynced_names_.push_back(change);
  return file;
}

std::optional<SimulatedDisk::FileId> SimulatedDisk::find(const std::string& path) const {
  std::lock_guard lock(mutex_);
  const auto found = names_.find(path);
  if (found == names_.end()) return std::nullopt;
  return found->second;
}

absl::Status SimulatedDisk::rename(const std::string& from, const std::string& to) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(before_change());
  const auto found = names_.find(from);
  if (found == names_.end()) return absl::NotFoundError(from);
  const NameChange change{.removed = from, .added = to, .file = found->second};
  apply(change, names_);
  unsynced_names_.push_back(change);
  return absl::OkStatus();
}

absl::Status SimulatedDisk::remove(const std::string& path) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(before_change());
  if (names_.count(path) == 0) return absl::NotFoundError(path);
  const NameChange change{.removed = path, .added = {}, .file = 0};
  apply(change, names_);
  unsynced_names_.push_back(change);
  return absl::OkStatus();
}

std::vector<std::string> SimulatedDisk::list(const std::string& folder) const {
  std::lock_guard lock(mutex_);
  const std::string prefix = folder.empty() || folder.back() == '/' ? folder : folder + "/";
  std::vector<std::string> found;
  for (const auto& [name, file] : names_) {
    if (name.compare(0, prefix.size(), prefix) == 0) found.push_back(name.substr(prefix.size()));
  }
  return found;
}

absl::Status SimulatedDisk::sync_names() {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(before_change(true));
  durable_names_ = names_;
  unsynced_names_.clear();
  return absl::OkStatus();
}

absl::Status SimulatedDisk::write(FileId file, std::uint64_t offset,
                                  std::span<const std::byte> bytes) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(before_change());
  if (bytes.empty()) return absl::OkStatus();
  File& data = files_.at(file);
  const std::uint64_t end = offset + bytes.size();
  if (data.now.size() < end) data.now.resize(end);
  std::memcpy(data.now.data() + offset, bytes.data(), bytes.size());
  for (std::uint64_t page = offset / kPage; page <= (end - 1) / kPage; ++page)
    data.unsynced.insert(page);
  return absl::OkStatus();
}

absl::Status SimulatedDisk::truncate(FileId file, std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(before_change());
  files_.at(file).now.resize(bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::size_t> SimulatedDisk::read(FileId file, std::uint64_t offset,
                                                std::span<std::byte> bytes) const {
  std::lock_guard lock(mutex_);
  if (is_cut_) return absl::UnavailableError("the power is off");
  if (fault_ == Fault::kGone) return absl::UnavailableError("the simulated device is gone");
  const std::vector<std::byte>& data = files_.at(file).now;
  if (offset >= data.size()) return 0;
  const std::size_t count = std::min(bytes.size(), data.size() - static_cast<std::size_t>(offset));
  std::memcpy(bytes.data(), data.data() + offset, count);
  return count;
}

std::uint64_t SimulatedDisk::size(FileId file) const {
  std::lock_guard lock(mutex_);
  return files_.at(file).now.size();
}

std::set<std::uint64_t> SimulatedDisk::unsynced_pages(FileId file) const {
  std::lock_guard lock(mutex_);
  return files_.at(file).unsynced;
}

absl::Status SimulatedDisk::sync(FileId file) { return sync_pages(file, unsynced_pages(file)); }

absl::Status SimulatedDisk::sync_pages(FileId file, const std::set<std::uint64_t>& pages) {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(before_change(true));
  File& data = files_.at(file);
  data.durable.resize(data.now.size());
  for (const std::uint64_t page : pages) {
    const std::size_t from = page * kPage;
    if (from >= data.now.size()) continue;
    std::copy_n(data.now.begin() + static_cast<std::ptrdiff_t>(from),
                std::min<std::size_t>(kPage, data.now.size() - from),
                data.durable.begin() + static_cast<std::ptrdiff_t>(from));
    data.unsynced.erase(page);
  }
  return absl::OkStatus();
}

void SimulatedDisk::corrupt(FileId file, std::uint64_t offset, std::span<const std::byte> bytes) {
  std::lock_guard lock(mutex_);
  File& data = files_.at(file);
  CHECK(offset + bytes.size() <= data.now.size());
  std::memcpy(data.now.data() + offset, bytes.data(), bytes.size());
  if (data.durable.size() >= offset + bytes.size())
    std::memcpy(data.durable.data() + offset, bytes.data(), bytes.size());
}

SimulatedSlotIo::SimulatedSlotIo(SimulatedDisk& disk, const std::string& path, std::uint64_t bytes,
                                 int queue_depth, std::uint64_t seed)
    : disk_(disk), queue_depth_(static_cast<std::size_t>(queue_depth)), random_(seed) {
  if (const auto found = disk_.find(path)) {
    file_ = *found;
    return;
  }
  file_ = disk_.create(path).value();
  CHECK(disk_.truncate(file_, bytes).ok() && disk_.sync(file_).ok() && disk_.sync_names().ok());
}

absl::Status SimulatedSlotIo::submit(SlotOperation& operation) {
  if (queue_.size() >= queue_depth_) return absl::ResourceExhaustedError("the queue is full");
  Queued queued;
  if (operation.kind == IoKind::kSync) queued.covered = disk_.unsynced_pages(file_);
  queued.operation = std::move(operation);
  queue_.push_back(std::move(queued));
  return absl::OkStatus();
}

absl::Status SimulatedSlotIo::execute(Queued& queued) {
  SlotOperation& operation = queued.operation;
  if (operation.kind == IoKind::kSync) return disk_.sync_pages(file_, queued.covered);
  if (operation.kind == IoKind::kWrite)
    return disk_.write(file_, operation.offset, std::as_const(operation.buffer).bytes());
  ASSIGN_OR_RETURN(const std::size_t count,
                   disk_.read(file_, operation.offset, operation.buffer.bytes()));
  return status_of_count(IoKind::kRead, count, operation.buffer.size());
}

std::vector<SlotCompletion> SimulatedSlotIo::run(std::size_t count) {
  std::vector<SlotCompletion> completions;
  while (count-- > 0 && !queue_.empty()) {
    std::swap(queue_[random_() % queue_.size()], queue_.back());
    Queued queued = std::move(queue_.back());
    queue_.pop_back();
    SlotCompletion completion;
    completion.status = execute(queued);
    completion.id = queued.operation.id;
    completion.kind = queued.operation.kind;
    completion.buffer = std::move(queued.operation.buffer);
    completions.push_back(std::move(completion));
  }
  return completions;
}

}  // namespace millrace::storage::disk
