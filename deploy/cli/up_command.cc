// `millrace up` and `millrace down`.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "common/process/shutdown_signal.h"
#include "common/str_cat.h"
#include "deploy/cli/cluster_record.h"
#include "deploy/cli/commands.h"
#include "deploy/cli/local_cluster.h"
#include "deploy/cli/up_reporter.h"

namespace millrace::deploy::cli {
namespace {

/// Tells a person, or with --json a program, how the start goes.
class TerminalReporter final : public UpReporter {
 public:
  TerminalReporter(const UpOptions& options, const Terminal& terminal)
      : options_(options), terminal_(terminal), line_(terminal) {}

  bool is_ready() const { return is_ready_; }

  void step(std::string_view text) override { line_.show(text); }

  void ready(std::string_view record_json) override {
    line_.clear();
    is_ready_ = true;
    if (options_.is_json) {
      std::printf("%.*s\n", static_cast<int>(record_json.size()), record_json.data());
    } else {
      print_greeting();
    }
    std::fflush(stdout);
  }

  void failed(std::string_view message) override {
    line_.clear();
    print_error(message);
  }

 private:
  void print_greeting() const {
    const absl::StatusOr<ClusterRecord> record = read_record(options_.data_dir);
    if (!record.ok()) return;
    std::printf("%s\n", terminal_.green("Millrace is ready.").c_str());
    std::printf("  API         http://%s/v1\n", record->entrypoint.c_str());
    std::printf("  admin API   http://%s/api/v1\n", record->controller.c_str());
    std::printf("  logs        %s\n", options_.data_dir.c_str());
    std::printf("%s\n",
                options_.is_detached
                    ? "Talk to it with \"millrace chat\"; stop it with \"millrace down\"."
                    : "Talk to it with \"millrace chat\" in another terminal; Ctrl-C stops it.");
  }

  const UpOptions& options_;
  const Terminal& terminal_;
  ProgressLine line_;
  bool is_ready_ = false;
};

/// Starts the cluster, keeps it until a signal comes, stops it.
int supervise(const UpOptions& options, std::unique_ptr<UpReporter> reporter) {
  absl::StatusOr<ShutdownSignal> signal = ShutdownSignal::install();
  if (!signal.ok()) {
    reporter->failed(message_of(signal.status()));
    return 1;
  }
  const absl::StatusOr<std::unique_ptr<LocalCluster>> cluster =
      LocalCluster::start(options, *signal, *reporter);
  if (!cluster.ok()) {
    reporter->failed(message_of(cluster.status()));
    return 1;
  }
  reporter->ready(to_json((*cluster)->record()));
  const absl::Status status = (*cluster)->run(*signal);
  if (!status.ok()) reporter->failed(message_of(status));
  reporter->step("stopping");
  (*cluster)->stop(*signal);
  return status.ok() ? 0 : 1;
}

/// In a new process: leaves the terminal's session and sends its output to the log.
bool leave_terminal(const std::string& log_path) {
  setsid();
  const int input = open("/dev/null", O_RDONLY);
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (input < 0 || log < 0) return false;
  dup2(input, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  close(input);
  close(log);
  return chdir("/") == 0;
}

/// The supervisor goes on in a process of its own; this one returns when it reports.
int run_detached(const UpOptions& options, const Terminal& terminal) {
  TerminalReporter reporter(options, terminal);
  const std::string log_path = options.data_dir + "/logs/up.log";
  std::error_code error;
  std::filesystem::create_directories(options.data_dir + "/logs", error);
  std::array<int, 2> ends{};
  if (error || pipe2(ends.data(), O_CLOEXEC) != 0) {
    reporter.failed(str_cat("cannot use the data folder ", options.data_dir, ": ",
                            error ? error.message() : strerror(errno)));
    return 1;
  }
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    if (!leave_terminal(log_path)) _exit(1);
    std::exit(supervise(options, make_pipe_reporter(ends[1])));
  }
  close(ends[1]);
  if (child < 0) {
    reporter.failed(str_cat("cannot start a process: ", strerror(errno)));
    return 1;
  }
  absl::StatusOr<ShutdownSignal> signal = ShutdownSignal::install();
  if (!signal.ok()) {
    reporter.failed(message_of(signal.status()));
    return 1;
  }
  bool has_ended = relay_reports(ends[0], signal->fd(), reporter);
  if (!has_ended && signal->count() > 0) {
    kill(child, SIGTERM);
    has_ended = relay_reports(ends[0], -1, reporter);  // it answers within its own grace times
  }
  if (!has_ended) reporter.failed(str_cat("the start ended without a word; see ", log_path));
  if (reporter.is_ready()) return 0;
  waitpid(child, nullptr, 0);
  return 1;
}

}  // namespace

int run_up(const UpOptions& options, const Terminal& terminal) {
  if (options.is_detached) return run_detached(options, terminal);
  return supervise(options, std::make_unique<TerminalReporter>(options, terminal));
}

int run_down(const DownOptions& options, const Terminal& terminal) {
  const std::optional<pid_t> supervisor = DataDirLock::holder(options.data_dir);
  if (!supervisor) {
    remove_record(options.data_dir);
    print_error(str_cat("no cluster runs from ", options.data_dir));
    return 1;
  }
  ProgressLine line(terminal);
  line.show("stopping");
  kill(*supervisor, SIGTERM);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.wait_s);
  bool was_killed = false;
  while (DataDirLock::holder(options.data_dir) == supervisor) {
    if (std::chrono::steady_clock::now() > deadline && !was_killed) {
      kill(*supervisor, SIGKILL);
      was_killed = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  line.clear();
  remove_record(options.data_dir);
  std::printf("%s\n", was_killed ? "Killed: it did not stop in time." : "Stopped.");
  return 0;
}

}  // namespace millrace::deploy::cli
