#pragma once

#include <string>

#include "deploy/cli/recipe_command.h"

namespace CLI {
class App;
}  // namespace CLI

namespace millrace::deploy::cli {

/// What the flags of `millrace recipe` set.
struct RecipeOptions {
  RecipeRenderOptions render = {};
  RecipeParseOptions parse = {};
  RecipeEncodeOptions encode = {};
};

/// The subcommands, by which one was given.
struct RecipeApps {
  const CLI::App* render = nullptr;
  const CLI::App* parse = nullptr;
  const CLI::App* encode = nullptr;
};

/// Adds `recipe` with its subcommands; parsing writes to `options`, which must live as long.
RecipeApps add_recipe(CLI::App& app, RecipeOptions& options);

/// Fills in what no flag has set.
void complete_recipe(RecipeOptions& options, const std::string& default_model_dir);

}  // namespace millrace::deploy::cli
