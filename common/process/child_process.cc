#include "common/process/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"

extern char** environ;

namespace millrace {
namespace {

/// Everything the child needs, made ready before the fork: between fork and exec only
/// async-signal-safe calls are allowed, because other threads may have held any lock.
struct PreparedChild {
  std::vector<std::string> texts;
  std::vector<char*> argv;
  std::vector<char*> envp;
  int output_fd = -1;
  int null_fd = -1;
  int error_fd = -1;  // write end; closes on a successful exec
};

std::string_view variable_name(std::string_view entry) { return entry.substr(0, entry.find('=')); }

std::vector<std::string> merged_environment(const std::vector<std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool is_replaced = false;
    for (const std::string& change : changes) {
      is_replaced = is_replaced || variable_name(change) == variable_name(*entry);
    }
    if (!is_replaced) result.emplace_back(*entry);
  }
  result.insert(result.end(), changes.begin(), changes.end());
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// Runs in the child. Never returns.
[[noreturn]] void exec_child(const char* program, char* const* argv, char* const* envp, int null_fd,
                             int output_fd, int error_fd, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above took effect.
  if (::getppid() != parent) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  bool ok = ::dup2(null_fd, STDIN_FILENO) >= 0;
  if (output_fd >= 0) {
    ok = ok && ::dup2(output_fd, STDOUT_FILENO) >= 0 && ::dup2(output_fd, STDERR_FILENO) >= 0;
  }
  // Libraries open descriptors without close-on-exec; none of ours are the child's business. The
  // error pipe is marked instead of closed, because a successful exec is seen by its closing.
  ::syscall(SYS_close_range, 3U, ~0U, 4U /* CLOSE_RANGE_CLOEXEC */);
  if (ok) ::execve(program, argv, envp);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(error_fd, &error, sizeof error);
  ::_exit(127);
}

void close_if_open(int fd) {
  if (fd >= 0) ::close(fd);
}

}  // namespace

std::string describe(const ExitStatus& status) {
  if (status.signal == 0) return str_cat("exit code ", status.code);
  return str_cat("signal ", status.signal, " (", ::strsignal(status.signal), ")");
}

absl::StatusOr<ChildProcess> ChildProcess::start(const ChildSpec& spec) {
  std::vector<std::string> argument_texts = {spec.program};
  argument_texts.insert(argument_texts.end(), spec.arguments.begin(), spec.arguments.end());
  std::vector<std::string> environment_texts = merged_environment(spec.environment);
  const std::vector<char*> argv = pointers(argument_texts);
  const std::vector<char*> envp = pointers(environment_texts);

  int output_fd = -1;
  if (!spec.output_path.empty()) {
    output_fd = ::open(spec.output_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (output_fd < 0) return absl::ErrnoToStatus(errno, spec.output_path);
  }
  const int null_fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  int error_pipe[2] = {-1, -1};
  pid_t pid = -1;
  int error = 0;
  if (null_fd < 0 || ::pipe2(error_pipe, O_CLOEXEC) != 0) {
    error = errno;
  } else {
    const pid_t parent = ::getpid();
    pid = ::fork();
    error = errno;
    if (pid == 0) {
      exec_child(spec.program.c_str(), argv.data(), envp.data(), null_fd, output_fd, error_pipe[1],
                 parent);
    }
  }
  close_if_open(null_fd);
  close_if_open(output_fd);
  close_if_open(error_pipe[1]);
  if (pid < 0) {
    close_if_open(error_pipe[0]);
    return absl::ErrnoToStatus(error, str_cat("cannot start ", spec.program));
  }

  int exec_error = 0;
  ssize_t count = 0;
  do {
    count = ::read(error_pipe[0], &exec_error, sizeof exec_error);
  } while (count < 0 && errno == EINTR);
  ::close(error_pipe[0]);
  if (count != 0) {
    ::waitpid(pid, nullptr, 0);
    return absl::ErrnoToStatus(exec_error, str_cat("cannot start ", spec.program));
  }
  const int exit_fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  const int pidfd_error = errno;
  ChildProcess child(pid, exit_fd);
  if (exit_fd < 0) {
    return absl::ErrnoToStatus(pidfd_error, str_cat("cannot watch ", spec.program));
  }
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      exit_fd_(std::exchange(other.exit_fd_, -1)),
      ended_(std::exchange(other.ended_, std::nullopt)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(exit_fd_, other.exit_fd_);
  std::swap(ended_, other.ended_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ >= 0 && !ended_) kill_and_reap();
  close_if_open(exit_fd_);
}

std::optional<ExitStatus> ChildProcess::poll() {
  if (ended_ || pid_ < 0) return ended_;
  int raw = 0;
  pid_t result = 0;
  do {
    result = ::waitpid(pid_, &raw, WNOHANG);
  } while (result < 0 && errno == EINTR);
  if (result == 0) return std::nullopt;
  CHECK(result == pid_, "the child was reaped by someone else");
  ended_ =
      WIFSIGNALED(raw) ? ExitStatus{.signal = WTERMSIG(raw)} : ExitStatus{.code = WEXITSTATUS(raw)};
  return ended_;
}

std::optional<ExitStatus> ChildProcess::wait_for(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    if (auto status = poll()) return status;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    pollfd wait{.fd = exit_fd_, .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
  }
}

void ChildProcess::send(int signal) {
  if (pid_ >= 0 && !ended_) ::kill(pid_, signal);
}

ExitStatus ChildProcess::stop(std::chrono::milliseconds grace) {
  send(SIGTERM);
  if (!wait_for(grace)) kill_and_reap();
  return *ended_;
}

void ChildProcess::kill_and_reap() {
  ::kill(-pid_, SIGKILL);
  // SIGKILL cannot be held off: this wait ends.
  while (!wait_for(std::chrono::seconds(10))) ::kill(pid_, SIGKILL);
}

}  // namespace millrace
