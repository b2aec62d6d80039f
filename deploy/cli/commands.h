#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "deploy/cli/terminal.h"

/// The subcommands of `millrace`. Each runs to its end and returns the process's exit status: 0 for
/// success, 1 when something failed (it was said on standard error). Flags are read by arguments.h.
namespace millrace::deploy::cli {

/// Where a running cluster is found.
struct ServerOptions {
  std::string data_dir = {};
  std::string url = {};  ///< of an entrypoint; empty: the one that `up` recorded in data_dir
};

struct UpOptions {
  std::string program_dir = {};  ///< where the other programs lie
  std::string model_dir = {};
  std::string model_id = {};  ///< empty: the name of the model's folder
  int prefill = 1;
  int decode = 1;
  std::string engine = {};
  std::string entrypoint = "127.0.0.1:8000";
  std::string controller = "127.0.0.1:8080";
  std::string data_dir = {};
  int kv_blocks = 0;                                ///< 0: the worker's own default
  int max_sequences = 0;                            ///< 0: the worker's own default
  std::uint64_t kv_bytes = std::uint64_t{2} << 30;  ///< on disk, for KV of prompts; 0: none
  int wait_s = 120;
  bool is_detached = false;
  bool is_json = false;
};

struct DownOptions {
  std::string data_dir = {};
  int wait_s = 120;
};

struct StatusOptions {
  std::string data_dir = {};
  std::string controller = {};  ///< host:port; empty: the one that `up` recorded
  bool is_json = false;
};

struct ChatOptions {
  ServerOptions server = {};
  std::optional<std::string> once = {};
  std::string system = {};
  std::optional<bool> is_thinking = {};
  std::optional<double> temperature = {};
  std::optional<int> max_tokens = {};
  std::optional<std::int64_t> seed = {};
};

struct CompleteOptions {
  ServerOptions server = {};
  std::string prompt = {};
  bool are_ids = false;  ///< the prompt is a list of token ids, and so is the answer
  int max_tokens = 64;
  double temperature = 0;
  std::optional<std::int64_t> seed = {};
};

struct BenchOptions {
  ServerOptions server = {};
  std::string model_dir = {};  ///< empty: the one that `up` recorded
  std::string trace = {};      ///< empty: synthetic
  std::optional<int> requests = {};
  int concurrency = 8;
  int input_tokens = 256;
  int output_tokens = 64;
  bool keep_arrivals = false;
  std::uint64_t seed = 0;
  int timeout_s = 600;
  bool is_json = false;
};

struct FitOptions {
  std::string model_dir = {};  ///< empty: the one that comes with Millrace
  std::string model_id = "nano";
  std::string out = "cost.json";
  std::string plot = {};  ///< empty: nothing is drawn
  double seconds = 60;
  int threads = 0;  ///< 0: one for each core
  int max_context = 4096;
  int step_rows = 256;  ///< the worker's default
  int max_batch = 32;
  std::uint64_t seed = 1;
};

struct EvalOptions {
  ServerOptions server = {};
  std::string tasks = {};      ///< empty: eval/tasks.jsonl of the model's folder
  std::string model_dir = {};  ///< empty: the one that `up` recorded
  int concurrency = 8;
  int limit = 0;  ///< tasks at most; 0: all
  bool is_json = false;
};

int run_up(const UpOptions& options, const Terminal& terminal);
int run_down(const DownOptions& options, const Terminal& terminal);
int run_status(const StatusOptions& options, const Terminal& terminal);
int run_chat(const ChatOptions& options, const Terminal& terminal);
int run_complete(const CompleteOptions& options, const Terminal& terminal);
int run_bench_serve(const BenchOptions& options, const Terminal& terminal);
int run_bench_fit(const FitOptions& options, const Terminal& terminal);
int run_eval(const EvalOptions& options, const Terminal& terminal);

}  // namespace millrace::deploy::cli
