#pragma once

#include "deploy/cli/storage_commands.h"

namespace CLI {
class App;
}  // namespace CLI

namespace millrace::deploy::cli {

/// What the flags of `millrace storage` and `millrace kv` set.
struct StorageOptions {
  StorageNodesOptions nodes = {};
  StorageReplaceOptions replace = {};
  KvStatusOptions status = {};
  KvScrubOptions scrub = {};
  KvEvictOptions evict = {};
  KvCheckOptions check = {};
  KvExplainOptions explain = {};
  KvBenchOptions bench = {};
};

/// The subcommands, by which one was given.
struct StorageApps {
  const CLI::App* nodes = nullptr;
  const CLI::App* replace = nullptr;
  const CLI::App* status = nullptr;
  const CLI::App* scrub = nullptr;
  const CLI::App* evict = nullptr;
  const CLI::App* check = nullptr;
  const CLI::App* explain = nullptr;
  const CLI::App* bench = nullptr;
};

/// Adds `storage` and `kv` with their subcommands; parsing writes to `options`, which must live as
/// long.
StorageApps add_storage(CLI::App& app, StorageOptions& options);

/// The folders among the options, which become absolute, and begin as the default data folder.
std::vector<std::string*> data_dirs_of(StorageOptions& options);

}  // namespace millrace::deploy::cli
