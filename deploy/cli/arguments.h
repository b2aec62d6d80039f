#pragma once

#include <optional>
#include <string>
#include <variant>

#include "deploy/cli/commands.h"
#include "deploy/cli/recipe_command.h"
#include "deploy/cli/storage_commands.h"

namespace millrace::deploy::cli {

/// What the process knows about its surroundings, for defaults.
struct Surroundings {
  std::string program_dir = {};     ///< the folder of the running executable
  std::string working_dir = {};     ///< relative paths are taken from here
  std::string data_dir_env = {};    ///< MILLRACE_DATA_DIR; may be empty
  std::string state_home_env = {};  ///< XDG_STATE_HOME; may be empty
  std::string home_env = {};        ///< HOME; may be empty
};

/// The folder of clusters when --data-dir is not given: MILLRACE_DATA_DIR, or millrace below
/// XDG_STATE_HOME or ~/.local/state.
std::string default_data_dir(const Surroundings& surroundings);

/// Where the model that comes with Millrace lies: in the source tree that the program was built in,
/// else where `cmake --install` puts it. Empty when neither is there.
std::string default_model_dir(const std::string& program_dir);

using Command =
    std::variant<UpOptions, DownOptions, StatusOptions, ChatOptions, CompleteOptions, BenchOptions,
                 FitOptions, EvalOptions, RecipeRenderOptions, RecipeParseOptions,
                 RecipeEncodeOptions, StorageNodesOptions, StorageReplaceOptions, KvStatusOptions,
                 KvScrubOptions, KvEvictOptions, KvCheckOptions, KvExplainOptions, KvBenchOptions>;

/// A command to run, or (help, version, a mistake) an exit status after something was printed.
struct Parsed {
  std::optional<Command> command = {};
  int exit_status = 0;  ///< 2 for a mistake in the arguments
};

Parsed parse_arguments(int argc, const char* const* argv, const Surroundings& surroundings);

}  // namespace millrace::deploy::cli
