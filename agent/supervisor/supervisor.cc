#include "agent/supervisor/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "agent/supervisor/bounded_log.h"
#include "api/admin/shared_memory.h"
#include "common/check.h"
#include "common/mapped_file.h"
#include "common/process/child_process.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::agent::supervisor {
namespace {

constexpr std::chrono::milliseconds kReadyPoll{20};
constexpr std::chrono::milliseconds kLogCheck{2000};
constexpr std::size_t kMaxReadyFileBytes = 64 << 10;
constexpr char kSharedMemoryFolder[] = "/dev/shm";

absl::Status make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::PermissionDeniedError(
      str_cat("cannot create the folder ", path, ": ", error.message()));
}

/// Removes the shared memory of a dead worker.
void remove_shared_memory(const api::admin::SharedMemoryOwner& owner) {
  const std::string prefix = api::admin::shared_memory_prefix(owner);
  std::error_code error;
  for (std::filesystem::directory_iterator entry(kSharedMemoryFolder, error), end;
       !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(prefix)) continue;
    std::error_code ignored;  // somebody else removed it first
    std::filesystem::remove(entry->path(), ignored);
  }
}

}  // namespace

struct Supervisor::Child {
  ChildProcess process;
  std::uint64_t incarnation = 0;
  bool is_ready = false;
  std::string complaint;  ///< why we killed it
};

struct Supervisor::Impl {
  SupervisorOptions options;
  int wake_fd = -1;
  std::map<std::string, Child> children;
  std::map<std::string, BoundedLog> logs;  // kept over restarts; one per worker id of this node
  TimePoint next_log_check;

  ~Impl() {
    children.clear();
    if (wake_fd >= 0) close(wake_fd);
  }

  std::string ready_file(const std::string& worker_id) const {
    return str_cat(options.data_dir, "/run/", worker_id, ".ready");
  }
  void clean_up_after(const std::string& worker_id) const;
  void poll_once(TimePoint until, int fd) const;
  std::optional<core::Event> check_exit(const std::string& worker_id, Child& child);
  ProcessFiles files(const std::string& worker_id) const {
    return {.ready = ready_file(worker_id),
            .responses = str_cat(options.data_dir, "/", worker_id, ".responses.sqlite"),
            .storage = str_cat(options.data_dir, "/", worker_id),
            .fetch_socket = str_cat(options.data_dir, "/kvfetch.sock")};
  }
  std::optional<core::Event> check_ready(const std::string& worker_id, Child& child) const;
  std::string reason_of(const std::string& worker_id, const Child& child,
                        const ExitStatus& status) const;
  void check_logs(TimePoint now);
};

void Supervisor::Impl::clean_up_after(const std::string& worker_id) const {
  unlink(ready_file(worker_id).c_str());
  remove_shared_memory({.host_id = options.node.host_id, .worker_id = worker_id});
}

Supervisor::Supervisor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Supervisor::~Supervisor() {
  for (auto& [worker_id, child] : impl_->children) {
    child.process.stop(std::chrono::milliseconds(0));
    impl_->clean_up_after(worker_id);
  }
}

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::open(SupervisorOptions options) {
  for (const char* folder : {"/logs", "/run"}) {
    if (absl::Status status = make_folder(options.data_dir + folder); !status.ok()) return status;
  }
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (impl->wake_fd < 0) return absl::ErrnoToStatus(errno, "eventfd");
  return std::unique_ptr<Supervisor>(new Supervisor(std::move(impl)));
}

absl::StatusOr<std::int64_t> Supervisor::start(const api::admin::ProcessSpec& spec,
                                               std::uint64_t incarnation) {
  CHECK(!impl_->children.contains(spec.worker_id), "two processes for one worker id");
  const ProcessFiles files = impl_->files(spec.worker_id);
  RETURN_IF_ERROR(check_files(spec, files));
  impl_->clean_up_after(spec.worker_id);
  BoundedLog& log =
      impl_->logs
          .try_emplace(spec.worker_id,
                       str_cat(impl_->options.data_dir, "/logs/", spec.worker_id, ".log"),
                       impl_->options.max_log_bytes)
          .first->second;
  // A log that cannot be rotated must not keep its process from running; the next check retries.
  static_cast<void>(log.rotate_if_large());
  log.begin_run();
  CommandLine line = command_line(spec, impl_->options.node, files);
  absl::StatusOr<ChildProcess> process =
      ChildProcess::start({.program = std::move(line.program),
                           .arguments = std::move(line.arguments),
                           .output_path = log.path()});
  if (!process.ok()) return process.status();
  const std::int64_t pid = process->pid();
  impl_->children.emplace(spec.worker_id, Child{std::move(*process), incarnation, false, ""});
  return pid;
}

void Supervisor::signal(const core::SignalProcess& command) {
  const auto it = impl_->children.find(command.worker_id);
  if (it == impl_->children.end() || it->second.incarnation != command.incarnation) return;
  it->second.process.send(command.signal == core::StopSignal::kTerminate ? SIGTERM : SIGKILL);
}

std::vector<core::Event> Supervisor::wait(TimePoint until, int fd) {
  impl_->poll_once(until, fd);
  std::vector<core::Event> events;
  for (auto it = impl_->children.begin(); it != impl_->children.end();) {
    const std::string worker_id = it->first;
    if (std::optional<core::Event> event = impl_->check_exit(worker_id, it->second)) {
      it = impl_->children.erase(it);
      impl_->clean_up_after(worker_id);
      events.push_back(std::move(*event));
      continue;
    }
    if (std::optional<core::Event> event = impl_->check_ready(worker_id, it->second)) {
      events.push_back(std::move(*event));
    }
    ++it;
  }
  impl_->check_logs(std::chrono::steady_clock::now());
  return events;
}

void Supervisor::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(impl_->wake_fd, &one, sizeof(one)));  // full = already woken
}

void Supervisor::Impl::poll_once(TimePoint until, int fd) const {
  std::vector<pollfd> fds;
  fds.push_back({.fd = wake_fd, .events = POLLIN, .revents = 0});
  if (fd >= 0) fds.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  bool is_any_starting = false;
  for (const auto& [worker_id, child] : children) {
    fds.push_back({.fd = child.process.exit_fd(), .events = POLLIN, .revents = 0});
    is_any_starting = is_any_starting || !child.is_ready;
  }
  const auto now = std::chrono::steady_clock::now();
  auto pause = std::chrono::ceil<std::chrono::milliseconds>(until - now);
  pause = std::min(pause, is_any_starting ? kReadyPoll : kLogCheck);
  pause = std::max(pause, std::chrono::milliseconds(0));
  poll(fds.data(), fds.size(), static_cast<int>(pause.count()));
  std::uint64_t count = 0;
  static_cast<void>(!read(wake_fd, &count, sizeof(count)));  // nothing to read = nobody woke us
}

std::optional<core::Event> Supervisor::Impl::check_exit(const std::string& worker_id,
                                                        Child& child) {
  const std::optional<ExitStatus> status = child.process.poll();
  if (!status) return std::nullopt;
  return core::Exited{worker_id, child.incarnation, reason_of(worker_id, child, *status)};
}

/// "exit code 1: the last line it printed". A killed process had no last words.
std::string Supervisor::Impl::reason_of(const std::string& worker_id, const Child& child,
                                        const ExitStatus& status) const {
  if (!child.complaint.empty()) return child.complaint;
  std::string reason = describe(status);
  if (status.signal == SIGKILL || status.signal == SIGTERM || status.is_success()) return reason;
  const std::string line = logs.at(worker_id).last_line();
  if (!line.empty()) reason += str_cat(": ", line);
  return reason;
}

std::optional<core::Event> Supervisor::Impl::check_ready(const std::string& worker_id,
                                                         Child& child) const {
  if (child.is_ready || !child.complaint.empty()) return std::nullopt;
  const absl::StatusOr<std::string> text = read_file(ready_file(worker_id), kMaxReadyFileBytes);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  absl::StatusOr<api::admin::ReadyFile> ready =
      text.ok() ? api::admin::parse_ready_file(*text) : text.status();
  if (!ready.ok()) {
    child.complaint = str_cat("its ready-file is unusable: ", message_of(ready.status()));
    child.process.send(SIGKILL);
    return std::nullopt;
  }
  child.is_ready = true;
  return core::BecameReady{worker_id, child.incarnation, std::move(*ready)};
}

void Supervisor::Impl::check_logs(TimePoint now) {
  if (now < next_log_check) return;
  next_log_check = now + kLogCheck;
  for (auto& [worker_id, log] : logs) static_cast<void>(log.rotate_if_large());
}

}  // namespace millrace::agent::supervisor
