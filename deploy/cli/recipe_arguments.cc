#include "deploy/cli/recipe_arguments.h"

#include <CLI/CLI.hpp>
#include <map>
#include <set>
#include <vector>

#include "api/recipe/protocols.h"
#include "api/recipe/settings.h"
#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

namespace recipe = api::recipe;

void add_tokenizer(CLI::App& command, std::string& tokenizer) {
  command.add_option("--tokenizer", tokenizer,
                     "tokenizer.json, or the folder of a model (default: the nano model)");
}

/// Flags of the settings that concern the prompt, or of all.
void add_rules(CLI::App& command, RecipeRules& rules, bool reads_answers) {
  std::set<std::string> protocols;
  for (const recipe::Protocol& protocol : recipe::all_protocols()) {
    protocols.emplace(protocol.name);
  }
  command.add_option("--protocol", rules.protocol, "Protocol of the request")
      ->check(CLI::IsMember(protocols))
      ->capture_default_str();
  for (const recipe::Setting& setting : recipe::all_settings()) {
    if (setting.part == recipe::Setting::Part::kAnswer && !reads_answers) continue;
    const std::string name(setting.name);
    command
        .add_option_function<std::string>(
            setting.flag(),
            [&rules, name](const std::string& value) { rules.settings.emplace_back(name, value); },
            str_cat(setting.help, " (default: ", setting.value_of({}), ")"))
        ->check(
            CLI::IsMember(std::vector<std::string>(setting.values.begin(), setting.values.end())));
  }
  add_tokenizer(command, rules.tokenizer);
}

CLI::App* add_render(CLI::App& group, RecipeRenderOptions& render) {
  CLI::App* command = group.add_subcommand("render", "Show the prompt that a request becomes");
  add_rules(*command, render.rules, false);
  command->add_flag("--json", render.is_json,
                    "Print one JSON object: prompt, ids, images and options");
  command->add_option("request", render.request, "Body of a request, - for standard input")
      ->required();
  command->footer(
      "Examples:\n"
      "  millrace recipe render request.json\n"
      "  millrace recipe render --protocol messages --encoding v4 --json request.json\n"
      "On a terminal every token has its colour, and control tokens have one of their own.");
  return command;
}

CLI::App* add_parse(CLI::App& group, RecipeParseOptions& parse) {
  using Finish = RecipeParseOptions::Finish;
  CLI::App* command =
      group.add_subcommand("parse", "Show the answer that a model's output becomes");
  add_rules(*command, parse.rules, true);
  command->add_option("--request", parse.request, "Body of the request that is answered")
      ->required();
  command->add_flag("--ids", parse.are_ids,
                    "The output is a JSON list of lists of token ids, as an engine delivers them");
  command->add_flag("--stream", parse.is_streamed,
                    "Print the events of a stream, one JSON object a line");
  const std::map<std::string, Finish> finishes = {
      {"stop", Finish::kStop}, {"length", Finish::kLength}, {"none", Finish::kNone}};
  command
      ->add_option_function<std::string>(
          "--finish",
          [&parse, finishes](const std::string& name) { parse.finish = finishes.at(name); },
          "Why generation ended; none: it has not (default: stop)")
      ->check(CLI::IsMember({"stop", "length", "none"}));
  command
      ->add_option("output", parse.output,
                   "What the model wrote, as text with its control tokens spelled out, "
                   "- for standard input")
      ->required();
  command->footer(
      "Examples:\n"
      "  millrace recipe parse --request request.json output.txt\n"
      "  echo '[[17, 4], [1]]' | millrace recipe parse --request request.json --ids --stream -\n"
      "Ids of the answer and its time are always the same, so that outputs can be compared.");
  return command;
}

CLI::App* add_encode(CLI::App& group, RecipeEncodeOptions& encode) {
  CLI::App* command = group.add_subcommand("encode", "Turn lines {\"text\"} into lines {\"ids\"}");
  add_tokenizer(*command, encode.tokenizer);
  command->add_flag("--special", encode.has_special,
                    "Spellings of added tokens in the text stand for these tokens");
  command->add_option("lines", encode.lines, "File of JSON lines, - for standard input")
      ->required();
  command->footer(
      "Example:\n"
      "  echo '{\"text\": \"Hello\"}' | millrace recipe encode -");
  return command;
}

}  // namespace

RecipeApps add_recipe(CLI::App& app, RecipeOptions& options) {
  CLI::App* group = app.add_subcommand("recipe", "Show prompts, parse outputs, without a cluster");
  group->require_subcommand(1);
  return {.render = add_render(*group, options.render),
          .parse = add_parse(*group, options.parse),
          .encode = add_encode(*group, options.encode)};
}

void complete_recipe(RecipeOptions& options, const std::string& default_model_dir) {
  for (std::string* tokenizer : {&options.render.rules.tokenizer, &options.parse.rules.tokenizer,
                                 &options.encode.tokenizer}) {
    if (tokenizer->empty()) *tokenizer = default_model_dir;
  }
}

}  // namespace millrace::deploy::cli
