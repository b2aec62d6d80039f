// millrace-recipe-bench: what the recipe costs. How fast the output parser reads tool calls of
// growing length, and where the time of a large chat request goes.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/chat_request.h"
#include "api/recipe/output_parser.h"
#include "api/recipe/prompt.h"
#include "api/tokenizer/tokenizer.h"
#include "common/check.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "tests/bench/stopwatch.h"

namespace millrace::tests::bench {
namespace {

using namespace api::recipe;
using api::tokenizer::Tokenizer;

struct Options {
  std::string tokenizer = "deploy/models/nano/tokenizer.json";
  double seconds = 1;
  std::size_t max_bytes = std::size_t{64} << 20;
};

/// Best rate of something that handles `bytes`, in MB (10^6 bytes) per second of one core. What is
/// short is repeated for about a millisecond, beside which reading the clock is nothing.
double best_rate(double seconds, std::size_t bytes, const std::function<void()>& work) {
  const Stopwatch first(ClockKind::kWall);
  work();
  const int calls = static_cast<int>(std::clamp(1e-3 / first.seconds(), 1.0, 1000.0));
  double best = 0;
  for (const Stopwatch total(ClockKind::kWall); total.seconds() < seconds || best == 0;) {
    const Stopwatch watch(ClockKind::kCpu);
    for (int i = 0; i < calls; ++i) work();
    best = std::max(best, calls * static_cast<double>(bytes) / watch.seconds() / 1e6);
  }
  return best;
}

/// Text of a length, of a pattern that is repeated.
std::string repeated(std::string_view pattern, std::size_t bytes) {
  std::string text;
  text.reserve(bytes + pattern.size());
  while (text.size() < bytes) text.append(pattern);
  return text;
}

constexpr std::string_view kCode =
    "  for (const auto& [name, value] : headers) {\n    log(\"header\", name, value);  // 标头\n  "
    "}\n";
constexpr std::string_view kRecord = R"({"id": 1024, "name": "Ada \"L\"", "tags": ["a", "b"]}, )";

/// A kind of argument: how it begins, what it consists of, how it ends.
struct Argument {
  const char* name;
  std::string_view type;
  std::string_view opening;
  std::string_view pattern;
  std::string_view closing;
};
constexpr Argument kArguments[] = {
    {"string: code", "true", "", kCode, ""},
    {"JSON: list of records", "false", "[", kRecord, "0]"},
};

/// A whole tool call as tokens: control tokens by id, the rest by the vocabulary.
std::vector<TokenId> call_tokens(const Tokenizer& tokenizer, const Argument& argument,
                                 std::size_t bytes) {
  std::string call = str_cat(
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"write\">\n<｜DSML｜parameter name=\"text\" "
      "string=\"",
      argument.type, "\">", argument.opening);
  call.append(repeated(argument.pattern, bytes)).append(argument.closing);
  call.append("</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
  const auto ids = tokenizer.encode_with_special(call);
  CHECK(ids.ok(), ids.status().ToString());
  return *ids;
}

/// Parses tokens, taking a delta after every group of them. Returns the bytes of arguments.
std::size_t parse(const Tokenizer& tokenizer, const ControlTokens& control,
                  const std::vector<TokenId>& tokens, std::size_t group) {
  ParseOptions options;
  options.markup = Markup::kCalls;
  OutputParser parser(tokenizer, control, options);
  std::size_t bytes = 0;
  const auto count = [&bytes](const OutputDelta& delta) {
    for (const ToolEvent& event : delta.tool_events) bytes += event.text.size();
  };
  OutputDelta delta;
  for (std::size_t begin = 0; begin < tokens.size(); begin += group) {
    // The allocator is not what is measured.
    delta.tool_events.clear();
    delta.ids.clear();
    const std::size_t end = std::min(tokens.size(), begin + group);
    for (std::size_t i = begin; i < end; ++i) parser.push({tokens[i], 0, {}}, delta);
    count(delta);
  }
  OutputDelta last;
  CHECK(parser.finish(FinishReason::kStop, last) == FinishReason::kToolCalls);
  return bytes;
}

void bench_parser(const Tokenizer& tokenizer, const ControlTokens& control,
                  const Options& options) {
  std::cout << "Output parser, MB/s of what the model wrote (one thread)\n"
            << std::left << std::setw(26) << "argument" << std::right << std::setw(10) << "KiB"
            << std::setw(16) << "1 token/delta" << std::setw(18) << "16 tokens/delta\n";
  for (const Argument& argument : kArguments) {
    // Up to the longest itself, which no power of eight need be.
    std::size_t bytes = 0;
    while (bytes < options.max_bytes) {
      bytes = std::min(bytes == 0 ? 1024 : 8 * bytes, options.max_bytes);
      const std::vector<TokenId> tokens = call_tokens(tokenizer, argument, bytes);
      std::size_t written = 0;
      for (const TokenId token : tokens) written += tokenizer.token_bytes(token).size();
      const auto rate = [&](std::size_t group) {
        return best_rate(options.seconds, written,
                         [&] { CHECK(parse(tokenizer, control, tokens, group) >= bytes); });
      };
      std::cout << std::left << std::setw(26) << argument.name << std::right << std::setw(10)
                << bytes / 1024 << std::fixed << std::setprecision(0) << std::setw(16) << rate(1)
                << std::setw(17) << rate(16) << std::endl;
    }
  }
}

/// A chat request of about a megabyte: many turns of prose and code.
std::string chat_body() {
  Json messages = Json::array();
  messages.push_back({{"role", "system"}, {"content", "You are a careful programmer."}});
  for (int turn = 0; turn < 128; ++turn) {
    messages.push_back({{"role", "user"}, {"content", repeated(kCode, 4000)}});
    messages.push_back(
        {{"role", "assistant"},
         {"content", repeated("The loop copies every header; it is linear. ", 4000)}});
  }
  messages.push_back({{"role", "user"}, {"content", "Go on."}});
  return dump_json(Json{{"model", "bench"}, {"messages", std::move(messages)}});
}

void bench_request(const Tokenizer& tokenizer, const Options& options) {
  const std::string body = chat_body();
  const auto decode = [&body] { return parse_chat_request(body, "bench", 1 << 20, Thinking::kOn); };
  const auto request = decode();
  CHECK(request.ok(), request.status().ToString());
  const auto prompt = render(request->conversation);
  CHECK(prompt.ok(), prompt.status().ToString());
  std::cout << "\nA chat request of " << body.size() << " bytes, ms by stage (best)\n";
  const auto row = [&](const char* name, const std::function<void()>& work) {
    const double rate = best_rate(options.seconds, body.size(), work);
    std::cout << std::left << std::setw(26) << name << std::right << std::fixed
              << std::setprecision(2) << std::setw(10)
              << static_cast<double>(body.size()) / rate / 1e3 << "\n";
  };
  row("decode", [&] { CHECK(decode().ok()); });
  row("render", [&] { CHECK(render(request->conversation).ok()); });
  row("encode", [&] { CHECK(encode_prompt(prompt->segments, tokenizer).ok()); });
}

absl::Status run(const Options& options) {
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::open(options.tokenizer));
  ASSIGN_OR_RETURN(const ControlTokens control, resolve_control_tokens(*tokenizer));
  bench_parser(*tokenizer, control, options);
  bench_request(*tokenizer, options);
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::tests::bench

int main(int argc, char** argv) {
  using namespace millrace;
  tests::bench::Options options;
  CLI::App app{"Measures the output parser and the stages of a chat request"};
  app.add_option("--tokenizer", options.tokenizer, "A tokenizer.json")->capture_default_str();
  app.add_option("--seconds", options.seconds, "Time for each figure")->capture_default_str();
  app.add_option("--max-bytes", options.max_bytes, "Longest argument")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = tests::bench::run(options);
  if (status.ok()) return 0;
  std::cerr << message_of(status) << "\n";
  return 1;
}
