// `millrace chat` and `millrace complete`.

#include <charconv>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "deploy/cli/cluster_record.h"
#include "deploy/cli/commands.h"
#include "deploy/cli/completion_client.h"

namespace millrace::deploy::cli {
namespace {

int fail(const absl::Status& status) {
  print_error(message_of(status));
  return 1;
}

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// A client and the name of the model it talks to.
struct Session {
  CompletionClient client;
  ServedModel model;
};

absl::StatusOr<Session> connect(const ServerOptions& server) {
  ASSIGN_OR_RETURN(std::string url, entrypoint_url(server.url, server.data_dir));
  CompletionClient client(std::move(url));
  ASSIGN_OR_RETURN(ServedModel model, client.model());
  return Session{std::move(client), std::move(model)};
}

/// Prints one answer while it comes: reasoning dimmed and only on a terminal, then the text.
absl::StatusOr<Completion> stream_answer(Session& session, const ChatRequest& request,
                                         const Terminal& terminal) {
  bool shows_reasoning = false;
  absl::StatusOr<Completion> answer = session.client.chat(request, [&](const Delta& delta) {
    if (terminal.is_output_terminal && !delta.reasoning.empty()) {
      put(terminal.dim(delta.reasoning));
      shows_reasoning = true;
    }
    if (!delta.text.empty()) {
      if (shows_reasoning) put("\n");
      shows_reasoning = false;
      put(delta.text);
    }
    return true;
  });
  if (answer.ok()) put("\n");
  return answer;
}

absl::StatusOr<std::vector<TokenId>> parse_ids(std::string_view text) {
  std::vector<TokenId> ids;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    if (*at == ' ' || *at == ',' || *at == '[' || *at == ']') {
      ++at;
      continue;
    }
    TokenId id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc()) {
      return absl::InvalidArgumentError(
          str_cat("--ids: \"", std::string_view(at, static_cast<std::size_t>(end - at)),
                  "\" does not begin with a token id; write them like \"0 17 4\""));
    }
    ids.push_back(id);
    at = next;
  }
  if (ids.empty()) return absl::InvalidArgumentError("--ids: the prompt holds no token id");
  return ids;
}

}  // namespace

int run_chat(const ChatOptions& options, const Terminal& terminal) {
  absl::StatusOr<Session> session = connect(options.server);
  if (!session.ok()) return fail(session.status());

  ChatRequest request{.model = session->model.id,
                      .is_thinking = options.is_thinking,
                      .max_tokens = options.max_tokens,
                      .temperature = options.temperature,
                      .seed = options.seed};
  if (!options.system.empty()) request.messages.push_back({"system", options.system});

  if (options.once) {
    request.messages.push_back({"user", *options.once});
    const absl::StatusOr<Completion> answer = stream_answer(*session, request, terminal);
    return answer.ok() ? 0 : fail(answer.status());
  }

  if (terminal.is_input_terminal) {
    put(terminal.dim(str_cat("Talking to ", request.model, ". /new starts over, /quit ends.\n")));
  }
  const std::size_t first_turn = request.messages.size();
  bool has_failed = false;
  while (true) {
    if (terminal.is_input_terminal) put(terminal.bold("> "));
    std::string line;
    if (!std::getline(std::cin, line) || line == "/quit") break;
    if (line == "/new") {
      request.messages.resize(first_turn);
      continue;
    }
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    request.messages.push_back({"user", line});
    const absl::StatusOr<Completion> answer = stream_answer(*session, request, terminal);
    if (answer.ok()) {
      request.messages.push_back({"assistant", answer->text});
    } else {
      request.messages.pop_back();
      print_error(message_of(answer.status()));
      has_failed = true;
    }
  }
  // A person has seen the error; a script that pipes its questions in must learn of it.
  return has_failed && !terminal.is_input_terminal ? 1 : 0;
}

int run_complete(const CompleteOptions& options, const Terminal&) {
  absl::StatusOr<Session> session = connect(options.server);
  if (!session.ok()) return fail(session.status());
  TextRequest request{.model = session->model.id,
                      .prompt = options.prompt,
                      .max_tokens = options.max_tokens,
                      .temperature = options.temperature,
                      .seed = options.seed,
                      .echo_ids = options.are_ids};
  if (options.are_ids) {
    absl::StatusOr<std::vector<TokenId>> ids = parse_ids(options.prompt);
    if (!ids.ok()) return fail(ids.status());
    request.prompt_ids = *std::move(ids);
  }
  bool is_first = true;
  const absl::StatusOr<Completion> answer =
      session->client.complete(request, [&](const Delta& delta) {
        if (!options.are_ids) put(delta.text);
        for (const TokenId id : options.are_ids ? delta.ids : std::vector<TokenId>()) {
          put(str_cat(is_first ? "" : " ", id));
          is_first = false;
        }
        return true;
      });
  if (!answer.ok()) return fail(answer.status());
  put("\n");
  return 0;
}

}  // namespace millrace::deploy::cli
