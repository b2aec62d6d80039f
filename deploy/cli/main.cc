// `millrace`: the command people type. Reads the surroundings and the arguments, then runs one
// command to its end.

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>
#include <variant>

#include "deploy/cli/arguments.h"
#include "deploy/cli/commands.h"

namespace {

namespace cli = millrace::deploy::cli;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

cli::Surroundings look_around() {
  std::error_code ignored;  // without /proc, --model and the other programs must be on hand
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return {.program_dir = program.parent_path().string(),
          .working_dir = std::filesystem::current_path(ignored).string(),
          .data_dir_env = environment("MILLRACE_DATA_DIR"),
          .state_home_env = environment("XDG_STATE_HOME"),
          .home_env = environment("HOME")};
}

struct Run {
  const cli::Terminal& terminal;
  int operator()(const cli::UpOptions& options) const { return run_up(options, terminal); }
  int operator()(const cli::DownOptions& options) const { return run_down(options, terminal); }
  int operator()(const cli::StatusOptions& options) const { return run_status(options, terminal); }
  int operator()(const cli::ChatOptions& options) const { return run_chat(options, terminal); }
  int operator()(const cli::CompleteOptions& options) const {
    return run_complete(options, terminal);
  }
  int operator()(const cli::BenchOptions& options) const {
    return run_bench_serve(options, terminal);
  }
  int operator()(const cli::FitOptions& options) const { return run_bench_fit(options, terminal); }
  int operator()(const cli::EvalOptions& options) const { return run_eval(options, terminal); }
  int operator()(const cli::StorageNodesOptions& options) const {
    return run_storage_nodes(options, terminal);
  }
  int operator()(const cli::StorageReplaceOptions& options) const {
    return run_storage_replace(options, terminal);
  }
  int operator()(const cli::KvStatusOptions& options) const {
    return run_kv_status(options, terminal);
  }
  int operator()(const cli::KvScrubOptions& options) const {
    return run_kv_scrub(options, terminal);
  }
  int operator()(const cli::KvEvictOptions& options) const {
    return run_kv_evict(options, terminal);
  }
  int operator()(const cli::KvCheckOptions& options) const {
    return run_kv_check(options, terminal);
  }
  int operator()(const cli::KvExplainOptions& options) const {
    return run_kv_explain(options, terminal);
  }
  int operator()(const cli::KvBenchOptions& options) const {
    return run_kv_bench(options, terminal);
  }
  int operator()(const cli::RecipeRenderOptions& options) const {
    return run_recipe_render(options, terminal);
  }
  int operator()(const cli::RecipeParseOptions& options) const {
    return run_recipe_parse(options, terminal);
  }
  int operator()(const cli::RecipeEncodeOptions& options) const {
    return run_recipe_encode(options, terminal);
  }
};

/// `millrace simulate …` is the program millrace-simulate beside this one. Returns only if that
/// cannot be run.
int run_simulate(char** argv, const std::string& program_dir) {
  const std::string program = program_dir + "/millrace-simulate";
  argv[1] = const_cast<char*>(program.c_str());
  ::execv(program.c_str(), argv + 1);
  std::cerr << "millrace simulate: " << program << ": " << std::strerror(errno) << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "simulate") {
    return run_simulate(argv, look_around().program_dir);
  }
  const cli::Parsed parsed = cli::parse_arguments(argc, argv, look_around());
  if (!parsed.command) return parsed.exit_status;
  const cli::Terminal terminal = cli::Terminal::detect();
  return std::visit(Run{terminal}, *parsed.command);
}
