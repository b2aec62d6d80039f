#include "agent/supervisor/command_line.h"

#include <sys/un.h>

#include <algorithm>

#include "common/str_cat.h"

namespace millrace::agent::supervisor {
namespace {

using api::admin::ProcessRole;
using api::admin::ProcessSpec;

void add(std::vector<std::string>& arguments, std::string name, std::string value) {
  arguments.push_back(std::move(name));
  arguments.push_back(std::move(value));
}

/// New blocks are stored soon, so they need less room than those that are read and used again; and
/// it is room for two blocks of the largest size in any case.
constexpr std::int64_t kReadPerWrite = 8;
constexpr std::int64_t kLeastWriteMib = 8;

/// A size that is 0 is the worker's own default.
void add_size(std::vector<std::string>& arguments, std::string name, std::int64_t size) {
  if (size > 0) add(arguments, std::move(name), str_cat(size));
}

std::vector<std::string> entrypoint_arguments(const ProcessSpec& spec, const NodeSettings& node,
                                              const ProcessFiles& files) {
  std::vector<std::string> arguments;
  const bool has_host = !spec.listen.starts_with(':');
  add(arguments, "--listen", has_host ? spec.listen : str_cat(node.listen_host, spec.listen));
  add(arguments, "--controller", node.controller_url);
  add(arguments, "--model", spec.model_dir);
  add(arguments, "--model-id", spec.model_id);
  add(arguments, "--entrypoint-id", spec.worker_id);
  add(arguments, "--response-store", files.responses);
  add(arguments, "--directory-listen", str_cat(node.listen_host, ":0"));
  if (!node.cluster_secret.empty()) add(arguments, "--cluster-secret", node.cluster_secret);
  if (!node.api_keys.empty()) add(arguments, "--api-keys", node.api_keys);
  return arguments;
}

std::string fetch_address(const ProcessFiles& files) {
  return str_cat("unix:", files.fetch_socket);
}

std::vector<std::string> worker_arguments(const ProcessSpec& spec, const NodeSettings& node,
                                          const ProcessFiles& files) {
  std::vector<std::string> arguments;
  add(arguments, "--role", std::string(api::admin::process_role_name(spec.role)));
  add(arguments, "--model", spec.model_dir);
  add(arguments, "--model-id", spec.model_id);
  add(arguments, "--worker-id", spec.worker_id);
  add(arguments, "--host-id", node.host_id);
  add(arguments, "--listen", str_cat(node.listen_host, ":0"));
  add(arguments, "--metrics", str_cat(node.listen_host, ":0"));
  if (!spec.engine.empty()) add(arguments, "--engine", spec.engine);
  add_size(arguments, "--kv-blocks", spec.kv_blocks);
  add_size(arguments, "--max-sequences", spec.max_sequences);
  add_size(arguments, "--step-rows", spec.step_rows);
  add_size(arguments, "--threads", node.worker_threads);
  if (spec.uses_kv_store) add(arguments, "--kv-fetch", fetch_address(files));
  return arguments;
}

std::vector<std::string> fetcher_arguments(const ProcessSpec& spec, const NodeSettings& node,
                                           const ProcessFiles& files) {
  std::vector<std::string> arguments;
  add(arguments, "--host-id", node.host_id);
  add(arguments, "--listen", fetch_address(files));
  add(arguments, "--controller", node.controller_url);
  add(arguments, "--metrics", str_cat(node.listen_host, ":0"));
  add_size(arguments, "--window-bytes", spec.window_bytes);
  add_size(arguments, "--window-pool-bytes", spec.window_pool_bytes);
  // Where the fetchers of other nodes read its windows.
  if (spec.window_bytes > 0) add(arguments, "--window-listen", str_cat(node.listen_host, ":0"));
  if (spec.fetch_bytes == 0) return arguments;
  const std::int64_t mib = std::max<std::int64_t>(1, spec.fetch_bytes >> 20);
  add(arguments, "--arena-mib", str_cat(mib));
  add(arguments, "--write-arena-mib", str_cat(std::max(kLeastWriteMib, mib / kReadPerWrite)));
  return arguments;
}

std::vector<std::string> storage_arguments(const ProcessSpec& spec, const NodeSettings& node,
                                           const ProcessFiles& files) {
  std::vector<std::string> arguments;
  add(arguments, "--node-id", spec.worker_id);
  add(arguments, "--controller", node.controller_url);
  add(arguments, "--data-dir", files.storage);
  add(arguments, "--targets", str_cat(spec.targets));
  add(arguments, "--target-bytes", str_cat(spec.target_bytes));
  add(arguments, "--listen", str_cat(node.listen_host, ":0"));
  add(arguments, "--metrics", str_cat(node.listen_host, ":0"));
  return arguments;
}

std::string_view program_of(ProcessRole role) {
  switch (role) {
    case ProcessRole::kEntrypoint:
      return "millrace-entrypoint";
    case ProcessRole::kStorage:
      return "millrace-storaged";
    case ProcessRole::kKvFetch:
      return "millrace-kvfetch";
    case ProcessRole::kPrefill:
    case ProcessRole::kDecode:
      break;
  }
  return "millrace-worker";
}

std::vector<std::string> arguments_of(const ProcessSpec& spec, const NodeSettings& node,
                                      const ProcessFiles& files) {
  switch (spec.role) {
    case ProcessRole::kEntrypoint:
      return entrypoint_arguments(spec, node, files);
    case ProcessRole::kStorage:
      return storage_arguments(spec, node, files);
    case ProcessRole::kKvFetch:
      return fetcher_arguments(spec, node, files);
    case ProcessRole::kPrefill:
    case ProcessRole::kDecode:
      break;
  }
  return worker_arguments(spec, node, files);
}

}  // namespace

absl::Status check_files(const ProcessSpec& spec, const ProcessFiles& files) {
  constexpr std::size_t kLongest = sizeof(sockaddr_un{}.sun_path) - 1;
  const bool needs_socket = spec.role == ProcessRole::kKvFetch || spec.uses_kv_store;
  if (!needs_socket || files.fetch_socket.size() <= kLongest) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("the path of the KV fetcher's socket, ",
                                            files.fetch_socket, ", has ", files.fetch_socket.size(),
                                            " characters, and at most ", kLongest,
                                            " are allowed; give the agent a shorter --data-dir"));
}

CommandLine command_line(const ProcessSpec& spec, const NodeSettings& node,
                         const ProcessFiles& files) {
  CommandLine line;
  line.program = str_cat(node.bin_dir, "/", program_of(spec.role));
  line.arguments = arguments_of(spec, node, files);
  add(line.arguments, "--ready-file", files.ready);
  add(line.arguments, "--log-level", node.log_level);
  return line;
}

}  // namespace millrace::agent::supervisor
