#pragma once

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "deploy/cli/terminal.h"

/// `millrace recipe`: prompts, answers and tokens without a server. Files named "-" are standard
/// input. Errors begin with the file's name, and name the line or the field at fault.
namespace millrace::deploy::cli {

/// By which rules a request is read and rendered, and an answer parsed.
struct RecipeRules {
  std::string protocol = "chat";
  std::string tokenizer = {};  ///< tokenizer.json, or the folder of a model that has one
  std::vector<std::pair<std::string, std::string>> settings = {};  ///< api/recipe/settings.h
};

struct RecipeRenderOptions {
  RecipeRules rules = {};
  std::string request = {};
  bool is_json = false;
};

struct RecipeParseOptions {
  enum class Finish { kStop, kLength, kNone };
  RecipeRules rules = {};
  std::string request = {};
  std::string output = {};
  bool are_ids = false;  ///< the output is a list of lists of token ids
  bool is_streamed = false;
  Finish finish = Finish::kStop;
};

struct RecipeEncodeOptions {
  std::string tokenizer = {};
  std::string lines = {};
  bool has_special = false;  ///< spellings of added tokens count
};

/// Writes a request's prompt and its token ids; boundaries of tokens in colours where there are
/// any.
absl::Status render_recipe(const RecipeRenderOptions& options, const Terminal& terminal,
                           std::istream& input, std::ostream& output);

/// Writes the answer to a request whose output is given: the protocol's object, or its events, one
/// a line.
absl::Status parse_recipe(const RecipeParseOptions& options, std::istream& input,
                          std::ostream& output);

/// Turns lines {"text"} into lines {"ids"}, as they come.
absl::Status encode_recipe(const RecipeEncodeOptions& options, std::istream& input,
                           std::ostream& output);

/// On standard input and output; the exit status is 1 after an error was printed.
int run_recipe_render(const RecipeRenderOptions& options, const Terminal& terminal);
int run_recipe_parse(const RecipeParseOptions& options, const Terminal& terminal);
int run_recipe_encode(const RecipeEncodeOptions& options, const Terminal& terminal);

}  // namespace millrace::deploy::cli
