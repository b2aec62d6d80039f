// `millrace kv explain`: asks an entrypoint, which knows the names of a prompt's blocks.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>

#include "common/http/http_client.h"
#include "common/http/status_code.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "deploy/cli/cluster_record.h"
#include "deploy/cli/storage_commands.h"
#include "deploy/cli/text_table.h"

namespace millrace::deploy::cli {
namespace {

constexpr std::size_t kMostInputBytes = std::size_t{64} << 20;

absl::StatusOr<std::string> read_request(const std::string& file) {
  if (file != "-") return read_file(file, kMostInputBytes);
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

/// What the entrypoint says of the request, as it came.
absl::StatusOr<std::string> ask(const KvExplainOptions& options) {
  ASSIGN_OR_RETURN(std::string body, read_request(options.file));
  ASSIGN_OR_RETURN(const std::string url, entrypoint_url(options.url, options.data_dir));
  common::http::HttpClient http;
  common::http::HttpRequest request;
  request.method = "POST";
  request.url = url + "/v1/kv/explain";
  request.body = std::move(body);
  if (!options.api_key.empty()) {
    request.headers.push_back({"Authorization", "Bearer " + options.api_key});
  }
  ASSIGN_OR_RETURN(common::http::HttpResponse response, http.send(request));
  if (response.status == 200) return std::move(response.body);
  const auto error = parse_json(response.body);
  std::string message = response.body.substr(0, 300);
  if (error.ok() && error->is_object() && error->contains("error")) {
    message = json_string((*error)["error"], "message").value_or(message);
  }
  return absl::Status(common::http::code_of_http_status(response.status), message);
}

std::string number(const Json& json) { return dump_json(json); }

void print_table(const Json& found) {
  if (found["stores_kv"] != true) {
    std::printf("This cluster stores no KV, or has not said so yet.\n");
  }
  std::string windows;
  for (const Json& window : found["windows"]) {
    windows.append(windows.empty() ? "" : ", ")
        .append(number(window["anchor"]))
        .append(" on ")
        .append(window["host_id"].get<std::string>());
  }
  TextTable table({"", "value"});
  table.add_row({"prompt tokens", number(found["prompt_tokens"])});
  table.add_row({"blocks", number(found["blocks"])});
  table.add_row({"usable blocks stored", number(found["hit_blocks"])});
  table.add_row({"tokens of the hit", number(found["hit_tokens"])});
  table.add_row({"windows at", windows.empty() ? "none" : windows});
  table.add_row({"start", found["start"].get<std::string>()});
  table.add_row({"computes from", number(found["compute_start"])});
  table.add_row({"tokens to run, cold", number(found["tokens_to_run"]["cold"])});
  table.add_row({"tokens to run, now", number(found["tokens_to_run"]["now"])});
  std::printf("%s", table.to_string().c_str());
}

absl::Status explain(const KvExplainOptions& options) {
  ASSIGN_OR_RETURN(const std::string answer, ask(options));
  ASSIGN_OR_RETURN(const Json found, parse_json(answer));
  const bool is_whole = found.is_object() && found.contains("tokens_to_run") &&
                        found.contains("windows") && found.contains("start");
  if (!is_whole) {
    return absl::DataLossError(
        "the entrypoint gave an answer of another form: is it of this version?");
  }
  options.is_json ? static_cast<void>(std::printf("%s\n", answer.c_str())) : print_table(found);
  return absl::OkStatus();
}

}  // namespace

int run_kv_explain(const KvExplainOptions& options, const Terminal&) {
  const absl::Status status = explain(options);
  if (status.ok()) return 0;
  print_error(message_of(status));
  return 1;
}

}  // namespace millrace::deploy::cli
