// `millrace recipe render`, `parse` and `encode`.

#include "deploy/cli/recipe_command.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/answer_writer.h"
#include "api/recipe/conversation_json.h"
#include "api/recipe/json_text.h"
#include "api/recipe/output.h"
#include "api/recipe/prompt.h"
#include "api/recipe/protocols.h"
#include "api/recipe/request_error.h"
#include "api/recipe/settings.h"
#include "api/tokenizer/tokenizer.h"
#include "api/tokenizer/utf8_stream.h"
#include "common/annotate.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

namespace recipe = api::recipe;
using api::tokenizer::Tokenizer;

constexpr std::size_t kMaxFileBytes = std::size_t{64} << 20;

std::string shown_name(const std::string& file) { return file == "-" ? "standard input" : file; }

/// An error of a file's content, with the field that an API would name beside the message.
absl::Status in_file(const absl::Status& status, const std::string& file) {
  const recipe::ErrorDetails details = recipe::error_details(status);
  const std::string field = details.param.empty() ? "" : str_cat(" (field ", details.param, ")");
  return absl::Status(status.code(), str_cat(shown_name(file), ": ", details.message, field));
}

/// A file, or standard input.
class Source {
 public:
  static absl::StatusOr<Source> open(const std::string& file, std::istream& input) {
    Source source;
    source.stream_ = &input;
    if (file != "-") {
      source.file_ = std::make_unique<std::ifstream>(file, std::ios::binary);
      if (!source.file_->is_open() || std::filesystem::is_directory(file)) {
        return absl::NotFoundError(str_cat(file, ": cannot be read"));
      }
      source.stream_ = source.file_.get();
    }
    return source;
  }
  std::istream& stream() { return *stream_; }

 private:
  std::unique_ptr<std::ifstream> file_;
  std::istream* stream_ = nullptr;
};

absl::StatusOr<std::string> read_all(const std::string& file, std::istream& input) {
  ASSIGN_OR_RETURN(Source source, Source::open(file, input));
  std::string content;
  std::array<char, 65536> piece{};
  while (source.stream().good()) {
    source.stream().read(piece.data(), piece.size());
    content.append(piece.data(), static_cast<std::size_t>(source.stream().gcount()));
    if (content.size() > kMaxFileBytes) {
      return absl::OutOfRangeError(
          str_cat(shown_name(file), ": is longer than ", kMaxFileBytes, " bytes"));
    }
  }
  return content;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& path) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "--tokenizer is needed: there is no nano model beside this program");
  }
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::string file = is_folder ? str_cat(path, "/tokenizer.json") : path;
  auto tokenizer = Tokenizer::open(file);
  if (!tokenizer.ok()) return annotate(tokenizer.status(), file);
  return tokenizer;
}

/// A request, and all that is needed to serve it but an engine.
struct Recipe {
  std::string request_file;
  std::string body;
  std::unique_ptr<Tokenizer> tokenizer;
  recipe::Settings settings;
  recipe::Deployment deployment;
  const recipe::Protocol* protocol = nullptr;
};

/// The model is called whatever the request calls it.
absl::StatusOr<std::unique_ptr<Recipe>> open_recipe(const RecipeRules& rules,
                                                    const std::string& request,
                                                    std::istream& input) {
  auto opened = std::make_unique<Recipe>();
  opened->request_file = request;
  ASSIGN_OR_RETURN(opened->protocol, recipe::find_protocol(rules.protocol));
  for (const auto& [name, value] : rules.settings) {
    RETURN_IF_ERROR(recipe::change_setting(name, value, opened->settings));
  }
  ASSIGN_OR_RETURN(opened->tokenizer, open_tokenizer(rules.tokenizer));
  ASSIGN_OR_RETURN(opened->body, read_all(request, input));
  const auto model = recipe::string_value(recipe::raw_member(opened->body, "model"));
  auto deployment =
      recipe::make_deployment(*opened->tokenizer, opened->settings, model.value_or("model"));
  if (!deployment.ok()) return annotate(deployment.status(), rules.tokenizer);
  opened->deployment = *std::move(deployment);
  return opened;
}

std::string joined(const std::vector<TokenId>& ids, std::string_view separator) {
  std::string text;
  for (const TokenId id : ids) {
    if (!text.empty()) text.append(separator);
    text.append(str_cat(id));
  }
  return text;
}

// render

std::string spelled(const std::vector<recipe::Segment>& segments) {
  std::string text;
  for (const recipe::Segment& segment : segments) text += segment.text;
  return text;
}

/// Tokens in two colours by turns, control tokens in a third one. Tokens that share a code point
/// are shown as one.
std::string coloured(const std::vector<TokenId>& ids, const Tokenizer& tokenizer) {
  constexpr std::string_view kTurns[] = {"\x1b[30;46m", "\x1b[30;47m"};
  constexpr std::string_view kControl = "\x1b[1;30;43m";
  constexpr std::string_view kPlain = "\x1b[0m";
  std::string shown;
  std::string text;
  std::size_t turn = 0;
  api::tokenizer::Utf8Stream utf8;
  for (const TokenId id : ids) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    utf8.push(bytes, text);
    if (utf8.held_bytes() > 0) continue;
    const bool is_control = tokenizer.control_token(bytes) == id;
    const std::string_view colour = is_control ? kControl : kTurns[turn++ % 2];
    shown.append(colour);
    for (const char c : text) {
      // A coloured line's end would colour the rest of the terminal's line.
      if (c == '\n') {
        shown.append("\u21b5").append(kPlain).append("\n").append(colour);
      } else {
        shown.push_back(c);
      }
    }
    shown.append(kPlain);
    text.clear();
  }
  return shown;
}

/// What was chosen for this request, by whoever chose it.
Json options_json(const Recipe& opened, const recipe::DecodedRequest& request,
                  recipe::Stage stage) {
  Json json = Json::object();
  json["protocol"] = opened.protocol->name;
  for (const recipe::Setting& setting : recipe::all_settings()) {
    json[std::string(setting.name)] = setting.value_of(opened.settings);
  }
  // Without messages and tools, whose numbers need not fit a JSON value.
  recipe::Conversation choices;
  choices.thinking = request.conversation.thinking;
  choices.effort = request.conversation.effort;
  choices.tool_choice = request.conversation.tool_choice;
  choices.response_format = request.conversation.response_format;
  const Json chosen = Json::parse(recipe::conversation_json(choices));
  for (const char* name : {"thinking", "reasoning_effort", "tool_choice", "response_format"}) {
    json[name] = chosen.at(name);
  }
  json["tools"] = Json::array();
  for (const recipe::Tool& tool : request.conversation.tools) {
    json["tools"].push_back(tool.full_name());
  }
  json["parallel_tool_calls"] = request.parallel_calls == recipe::ParallelCalls::kAllowed;
  json["begins_in"] = recipe::stage_name(stage);
  json["stream"] = request.is_streamed;
  json["sampling"] = Json::parse(recipe::sampling_json(request.sampling));
  return json;
}

// parse

/// Token ids as an engine would deliver them.
using Chunks = std::vector<std::vector<recipe::GeneratedToken>>;

absl::StatusOr<Chunks> chunks_of_ids(const std::string& text, TokenId id_bound) {
  const auto refuse = [&](const std::string& path) {
    return absl::InvalidArgumentError(
        str_cat(path, ": must be ", path == "output" ? "a list of lists of token ids" : "",
                path == "output" ? "" : str_cat("a token id from 0 to ", id_bound - 1)));
  };
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  if (!json.is_array()) return refuse("output");
  Chunks chunks;
  chunks.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (!json[i].is_array()) return refuse("output");
    std::vector<recipe::GeneratedToken>& chunk = chunks.emplace_back();
    chunk.reserve(json[i].size());
    for (std::size_t j = 0; j < json[i].size(); ++j) {
      const Json& id = json[i][j];
      if (!id.is_number_integer() || id < 0 || id >= id_bound) {
        return refuse(str_cat("[", i, "][", j, "]"));
      }
      chunk.push_back({id.get<TokenId>(), 0, {}});
    }
  }
  return chunks;
}

/// Every token of the text is a chunk of its own.
absl::StatusOr<Chunks> chunks_of_text(const std::string& text, const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer.encode_with_special(text));
  Chunks chunks;
  chunks.reserve(ids.size());
  for (const TokenId id : ids) chunks.push_back({{id, 0, {}}});
  return chunks;
}

absl::StatusOr<Chunks> read_output(const RecipeParseOptions& options, const Tokenizer& tokenizer,
                                   std::istream& input) {
  ASSIGN_OR_RETURN(const std::string text, read_all(options.output, input));
  auto chunks =
      options.are_ids ? chunks_of_ids(text, tokenizer.id_bound()) : chunks_of_text(text, tokenizer);
  if (!chunks.ok()) return in_file(chunks.status(), options.output);
  return chunks;
}

recipe::FinishReason reason_of(RecipeParseOptions::Finish finish) {
  return finish == RecipeParseOptions::Finish::kLength ? recipe::FinishReason::kLength
                                                       : recipe::FinishReason::kStop;
}

void write_lines(const std::vector<std::string>& lines, std::ostream& output) {
  for (const std::string& line : lines) output << line << '\n';
}

absl::Status write_answer(const RecipeParseOptions& options, const Chunks& chunks,
                          recipe::AnswerWriter& writer, std::ostream& output) {
  if (options.is_streamed) {
    write_lines(writer.push({}), output);
    for (const auto& chunk : chunks) write_lines(writer.push(chunk), output);
    if (options.finish != RecipeParseOptions::Finish::kNone) {
      write_lines(writer.finish(reason_of(options.finish)), output);
    }
    return absl::OkStatus();
  }
  std::vector<recipe::GeneratedToken> tokens;
  for (const auto& chunk : chunks) tokens.insert(tokens.end(), chunk.begin(), chunk.end());
  output << writer.complete(tokens, reason_of(options.finish)) << '\n';
  return absl::OkStatus();
}

// encode

absl::StatusOr<std::vector<TokenId>> encode_line(const std::string& line, bool has_special,
                                                 const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const Json json, parse_json(line));
  if (!json.is_object()) return absl::InvalidArgumentError("must be an object {\"text\": ...}");
  ASSIGN_OR_RETURN(const std::string text, json_string(json, "text"));
  return has_special ? tokenizer.encode_with_special(text) : tokenizer.encode_text(text);
}

/// The next line without its end; nullopt at the end of the stream.
absl::StatusOr<std::optional<std::string>> next_line(std::istream& stream) {
  std::string line;
  for (int c = stream.get(); c != std::istream::traits_type::eof(); c = stream.get()) {
    if (c == '\n') return std::optional(std::move(line));
    if (line.size() == kMaxFileBytes) {
      return absl::OutOfRangeError(str_cat("is longer than ", kMaxFileBytes, " bytes"));
    }
    line.push_back(static_cast<char>(c));
  }
  return line.empty() ? std::nullopt : std::optional(std::move(line));
}

int exit_status(const absl::Status& status) {
  if (status.ok()) return 0;
  print_error(message_of(status));
  return 1;
}

}  // namespace

absl::Status render_recipe(const RecipeRenderOptions& options, const Terminal& terminal,
                           std::istream& input, std::ostream& output) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Recipe> opened,
                   open_recipe(options.rules, options.request, input));
  const auto request = opened->protocol->decode(opened->body, opened->deployment);
  if (!request.ok()) return in_file(request.status(), options.request);
  const auto prompt = recipe::render(request->conversation, opened->settings.render);
  if (!prompt.ok()) return in_file(prompt.status(), options.request);
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                   recipe::encode_prompt(prompt->segments, *opened->tokenizer));
  if (options.is_json) {
    Json json = Json::object();
    json["prompt"] = spelled(prompt->segments);
    json["ids"] = ids;
    json["images"] = prompt->images;
    json["options"] = options_json(*opened, *request, prompt->stage);
    output << dump_json(json) << '\n';
    return absl::OkStatus();
  }
  output << (terminal.has_colour ? coloured(ids, *opened->tokenizer) : spelled(prompt->segments))
         << "\n\n"
         << terminal.dim(str_cat(ids.size(), " tokens: ")) << joined(ids, " ") << '\n';
  return absl::OkStatus();
}

absl::Status parse_recipe(const RecipeParseOptions& options, std::istream& input,
                          std::ostream& output) {
  if (options.finish == RecipeParseOptions::Finish::kNone && !options.is_streamed) {
    return absl::InvalidArgumentError(
        "--finish none needs --stream: a whole answer has ended somehow");
  }
  if (options.request == "-" && options.output == "-") {
    return absl::InvalidArgumentError("request and output cannot both be standard input");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Recipe> opened,
                   open_recipe(options.rules, options.request, input));
  // Ids and times that repeat, so that outputs can be compared.
  auto prepared = opened->protocol->prepare(opened->body, opened->deployment, {"recipe", 0});
  if (!prepared.ok()) return in_file(prepared.status(), options.request);
  auto writer = recipe::AnswerWriter::open(*std::move(prepared), opened->deployment);
  if (!writer.ok()) return in_file(writer.status(), options.request);
  ASSIGN_OR_RETURN(const Chunks chunks, read_output(options, *opened->tokenizer, input));
  return write_answer(options, chunks, *writer, output);
}

absl::Status encode_recipe(const RecipeEncodeOptions& options, std::istream& input,
                           std::ostream& output) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, open_tokenizer(options.tokenizer));
  ASSIGN_OR_RETURN(Source source, Source::open(options.lines, input));
  for (int number = 1;; ++number) {
    const std::string where = str_cat(shown_name(options.lines), ":", number);
    const auto line = next_line(source.stream());
    if (!line.ok()) return annotate(line.status(), where);
    if (!*line) return absl::OkStatus();
    const auto ids = encode_line(**line, options.has_special, *tokenizer);
    if (!ids.ok()) return annotate(ids.status(), where);
    output << "{\"ids\":[" << joined(*ids, ",") << "]}\n";
  }
}

int run_recipe_render(const RecipeRenderOptions& options, const Terminal& terminal) {
  return exit_status(render_recipe(options, terminal, std::cin, std::cout));
}

int run_recipe_parse(const RecipeParseOptions& options, const Terminal& /*terminal*/) {
  return exit_status(parse_recipe(options, std::cin, std::cout));
}

int run_recipe_encode(const RecipeEncodeOptions& options, const Terminal& /*terminal*/) {
  return exit_status(encode_recipe(options, std::cin, std::cout));
}

}  // namespace millrace::deploy::cli
