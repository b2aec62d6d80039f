#pragma once

#include <string>
#include <vector>

#include "api/admin/process.h"

namespace millrace::agent::supervisor {

/// What all processes of a node share.
struct NodeSettings {
  std::string node_id;
  std::string host_id;
  std::string listen_host;     ///< workers listen there, on any free port
  std::string controller_url;  ///< for entrypoints and storage nodes
  std::string bin_dir;         ///< where the programs are
  std::string log_level;
  int worker_threads = 0;  ///< of every engine process; 0 = as many as its own default
};

/// Files that a process writes.
struct ProcessFiles {
  std::string ready;      ///< once it is ready
  std::string responses;  ///< of an entrypoint: the responses it keeps
  std::string storage;    ///< of a storage node: the folder of its targets
};

struct CommandLine {
  std::string program;
  std::vector<std::string> arguments;
};

/// How a process with this spec is started.
CommandLine command_line(const api::admin::ProcessSpec& spec, const NodeSettings& node,
                         const ProcessFiles& files);

}  // namespace millrace::agent::supervisor
