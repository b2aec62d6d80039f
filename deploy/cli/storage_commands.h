#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deploy/cli/terminal.h"

/// `millrace storage` and `millrace kv`: the cluster's KV store, for people. As the commands of
/// commands.h: each runs to its end and returns the process's exit status.
namespace millrace::deploy::cli {

/// Whose store it is.
struct StorageServer {
  std::string data_dir = {};
  std::string controller = {};  ///< host:port; empty: the one that `up` recorded
};

struct StorageNodesOptions {
  StorageServer server = {};
  bool is_json = false;
};

struct StorageReplaceOptions {
  StorageServer server = {};
  std::string target = {};
  std::string spare = {};  ///< empty: the controller chooses
  bool waits = false;      ///< until the spare is rebuilt
  int wait_s = 3600;
};

struct KvStatusOptions {
  StorageServer server = {};
  bool is_json = false;
};

struct KvScrubOptions {
  StorageServer server = {};
  int wait_s = 3600;
  bool is_json = false;
};

struct KvEvictOptions {
  StorageServer server = {};
  double to_fraction = 0;
  int wait_s = 600;
};

struct KvCheckOptions {
  StorageServer server = {};
  std::string file = {};     ///< "-": standard input
  std::string account = {};  ///< whose prompt it is
  std::string user_id = {};
  bool is_json = false;
};

struct KvExplainOptions {
  std::string data_dir = {};
  std::string url = {};      ///< of an entrypoint; empty: the one that `up` recorded in data_dir
  std::string file = {};     ///< "-": standard input
  std::string api_key = {};  ///< empty: none is sent
  bool is_json = false;
};

struct KvBenchOptions {
  StorageServer server = {};
  int blocks = 256;
  int concurrency = 16;
  std::uint64_t seed = 0;
  int read_seconds = 0;  ///< 0: every block once
  int spare_shards = 1;  ///< beyond k, that every read asks for at once
  bool is_json = false;
};

int run_storage_nodes(const StorageNodesOptions& options, const Terminal& terminal);
int run_storage_replace(const StorageReplaceOptions& options, const Terminal& terminal);
int run_kv_status(const KvStatusOptions& options, const Terminal& terminal);
int run_kv_scrub(const KvScrubOptions& options, const Terminal& terminal);
int run_kv_evict(const KvEvictOptions& options, const Terminal& terminal);
int run_kv_explain(const KvExplainOptions& options, const Terminal& terminal);
int run_kv_check(const KvCheckOptions& options, const Terminal& terminal);
int run_kv_bench(const KvBenchOptions& options, const Terminal& terminal);

}  // namespace millrace::deploy::cli
