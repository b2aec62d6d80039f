#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "api/admin/process.h"

namespace millrace::agent::supervisor {

/// What all processes of a node share.
struct NodeSettings {
  std::string node_id;
  std::string host_id;
  std::string listen_host;     ///< workers listen there, on any free port
  std::string controller_url;  ///< for all but engines
  std::string bin_dir;         ///< where the programs are
  std::string log_level;
  int worker_threads = 0;        ///< of every engine process; 0 = as many as its own default
  std::string cluster_secret{};  ///< file for entrypoints; empty: they have none
  std::string api_keys{};        ///< likewise
};

/// Files that a process writes, or meets others at.
struct ProcessFiles {
  std::string ready;         ///< once it is ready
  std::string responses;     ///< of an entrypoint: the responses it keeps
  std::string storage;       ///< of a storage node: the folder of its targets
  std::string fetch_socket;  ///< of the node's KV fetcher
};

struct CommandLine {
  std::string program;
  std::vector<std::string> arguments;
};

/// kInvalidArgument: the fetcher's socket is needed and its path is longer than the system allows.
absl::Status check_files(const api::admin::ProcessSpec& spec, const ProcessFiles& files);

/// How a process with this spec is started.
CommandLine command_line(const api::admin::ProcessSpec& spec, const NodeSettings& node,
                         const ProcessFiles& files);

}  // namespace millrace::agent::supervisor
