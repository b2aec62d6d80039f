#include "tests/sim/cluster/scenario_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "common/annotate.h"
#include "common/config/toml_values.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/routing/buckets.h"

namespace millrace::sim {
namespace {

using common::config::TomlValue;

/// A value of a table: where it goes, what it may be, and what it means.
struct Field {
  std::string_view key;
  double* number = nullptr;
  std::int64_t* integer = nullptr;
  std::string* text = nullptr;
  double least = 0;
  double most = 0;
  std::string_view meaning;
};

Field number(std::string_view key, double& target, double least, double most,
             std::string_view meaning) {
  return {.key = key, .number = &target, .least = least, .most = most, .meaning = meaning};
}

Field integer(std::string_view key, std::int64_t& target, double least, double most,
              std::string_view meaning) {
  return {.key = key, .integer = &target, .least = least, .most = most, .meaning = meaning};
}

Field text(std::string_view key, std::string& target, std::string_view meaning) {
  return {.key = key, .text = &target, .meaning = meaning};
}

/// What a scenario file holds before its other files are read.
struct Draft {
  Scenario scenario;
  std::string cost_file;
  std::string bucket_edges;  // empty: the default ones
  std::vector<std::string> fault_roles;
};

constexpr std::int64_t kManyRanks = 1 << 16;
constexpr double kMuch = 1e12;

std::vector<Field> run_fields(Draft& draft) {
  Scenario& s = draft.scenario;
  ArrivalSettings& a = s.arrivals;
  return {
      text("name", s.name, "of the scenario"),
      number("horizon_s", s.horizon_s, 1e-3, 1e6, "requests arrive for so long"),
      number("warmup_s", s.warmup_s, 0, 1e6, "what arrives before is served and not counted"),
      number("drain_s", s.drain_s, 0, 1e6, "after the horizon; what is unfinished then is a miss"),
      text("cost.file", draft.cost_file, "costs of prefill and decode steps (required)"),
      text("arrivals.trace", a.trace, "Mooncake .jsonl or Azure .csv, also .gz; else generated"),
      integer("arrivals.rows", a.rows, 0, 1e9, "of the trace at most; 0 = all"),
      integer("arrivals.copies", a.copies, 1, 1e5, "of the trace, overlaid with shifted phases"),
      number("arrivals.speed", a.speed, 1e-6, 1e6, "times of the trace are divided by it"),
      number("arrivals.tick_s", a.tick_s, 0, 3600,
             "arrivals spread over so long after their stamp"),
      integer("arrivals.cache_blocks", a.cache_blocks, 0, 1e9,
              "512-token blocks that each copy's prefix cache holds; 0 = unbounded"),
      number("arrivals.rate", a.rate, 0, 1e6, "generated requests a second, Poisson"),
      number("arrivals.burst_every_s", a.burst_every_s, 0, 1e6, "0 = no bursts"),
      integer("arrivals.burst_requests", a.burst_requests, 0, 1e6, "of the last class, at once"),
      integer("arrivals.at_start", a.at_start, 0, 1e6, "requests of the last class at time 0"),
      integer("entrypoints.count", s.entrypoints, 1, 256, ""),
      number("entrypoints.report_period_ms", s.report_period_ms, 1, 1e6,
             "ranks report their load so often"),
      number("entrypoints.report_delay_ms", s.report_delay_ms, 0, 1e6, "age of a report"),
      number("entrypoints.network_delay_ms", s.network_delay_ms, 0, 1e4,
             "of a message between entrypoint and instance"),
      number("limits.ttft_s", s.ttft_limit_s, 1e-3, 1e6, "time to first token"),
      number("limits.tpot_ms", s.tpot_limit_ms, 1e-3, 1e6, "time per output token"),
      number("limits.share", s.limit_share, 0.01, 1, "of requests that must meet both"),
  };
}

std::vector<Field> machine_fields(Draft& draft) {
  Scenario& s = draft.scenario;
  return {
      integer("prefill.instances", s.prefill_instances, 1, 4096, ""),
      integer("prefill.ranks", s.prefill_ranks, 1, 1024, "of an instance; they meet at each step"),
      number("prefill.step_budget_ms", s.step_budget_ms, 1e-3, 1e6, "compute of a rank in a step"),
      number("prefill.quota_per_rank_ms", s.quota_per_rank_ms, 0, 1e6,
             "compute queued on a rank beyond which nothing is claimed"),
      number("prefill.share_cap", s.share_cap, 0.01, 1, "of a step for one request"),
      integer("prefill.chunk_rows", s.chunk_rows, 1, 1e6,
              "rows of a rank in a step under policies with fixed chunks"),
      integer("prefill.max_rows", s.prefill_max_rows, 0, 1e6,
              "that an engine runs in a step under any policy; 0 = no bound"),
      integer("prefill.per_core", s.prefill_per_core, 1, 4096,
              "instances that share one core, each as fast as its share of it"),
      number("prefill.step_overhead_ms", s.step_overhead_ms, 0, 1e4, "of a step, beside compute"),
      number("prefill.fetch_deadline_s", s.fetch_deadline_s, 0, 1e4,
             "a request whose stored KV is not there by then runs without it"),
      text("buckets.edges", draft.bucket_edges,
           "between the four ranges of input lengths, in tokens: \"16384,65536,262144\""),
      number("buckets.help_after_ms", s.help_after_ms, 0, 1e9,
             "a request of another bucket must have waited so much longer to be claimed"),
      number("buckets.round_s", s.bucket_round_s, 1e-3, 1e6, "instances are split anew so often"),
      integer("buckets.max_moves", s.bucket_max_moves, 1, 4096, "of instances in a round"),
      number("buckets.min_share_change", s.bucket_min_share_change, 0, 1, "that moves one"),
      integer("decode.instances", s.decode_instances, 1, 4096, ""),
      integer("decode.ranks", s.decode_ranks, 1, 1024, "of an instance; they meet at each step"),
      integer("decode.per_core", s.decode_per_core, 1, 4096, "as of prefill"),
      number("decode.step_overhead_ms", s.decode_step_overhead_ms, 0, 1e4, "as of prefill"),
      integer("decode.late_choice", s.late_decode_choice, 0, 1,
              "1 = a decode rank is picked at hand-over; 0 = with the prefill rank"),
      integer("decode.look", s.decode_look, 1, 1 << 16,
              "ranks with room that millrace looks at for a request"),
      integer("decode.kv_tokens_per_rank", s.kv_tokens_per_rank, 1, kMuch, "room for KV"),
      number("storage.kv_bytes_per_token", s.kv_bytes_per_token, 0, 1e9, ""),
      number("storage.gb_per_s", s.storage_gb_per_s, 1e-6, 1e6, "reads of a node (8 ranks)"),
      number("storage.latency_ms", s.storage_latency_ms, 0, 1e6, "of a read"),
      number("handover.gb_per_s", s.handover_gb_per_s, 1e-6, 1e6, "prefill to decode, a request"),
      number("handover.latency_ms", s.handover_latency_ms, 0, 1e6, ""),
  };
}

std::vector<Field> class_fields(RequestClass& c) {
  return {
      number("share", c.share, 0, 1e9, "of requests, relative to the other classes"),
      number("input_median", c.input_median, 1, 1 << 24, "tokens"),
      number("input_sigma", c.input_sigma, 0, 4, "of the logarithm"),
      integer("input_min", c.input_min, 1, 1 << 24, ""),
      integer("input_max", c.input_max, 1, 1 << 24, ""),
      number("output_median", c.output_median, 1, 1 << 20, "tokens"),
      number("output_sigma", c.output_sigma, 0, 4, "of the logarithm"),
      integer("output_max", c.output_max, 1, 1 << 20, ""),
      number("cached_share", c.cached_share, 0, 1, "of the input whose KV is stored"),
  };
}

std::vector<Field> fault_fields(Fault& f, std::string& role) {
  return {
      number("at_s", f.at_s, 0, 1e6, ""),
      number("until_s", f.until_s, 0, 1e6, "0 = to the end"),
      text("role", role, "prefill or decode"),
      integer("rank", f.rank, 0, 1 << 16, "among all ranks of the role"),
      number("slow_factor", f.slow_factor, 0, 1e4, "compute takes so many times as long; 0 = down"),
  };
}

std::string range_of(const Field& field) {
  return field.text != nullptr ? std::string("text")
                               : str_cat(field.integer != nullptr ? "a whole number" : "a number",
                                         " from ", field.least, " to ", field.most);
}

absl::Status refuse(const Field& field) {
  return absl::InvalidArgumentError(str_cat("must be ", range_of(field)));
}

absl::Status assign(const Field& field, const TomlValue& value) {
  if (field.text != nullptr) {
    const auto* given = std::get_if<std::string>(&value.value);
    if (given == nullptr) return refuse(field);
    *field.text = *given;
    return absl::OkStatus();
  }
  const auto* whole = std::get_if<std::int64_t>(&value.value);
  const auto* real = std::get_if<double>(&value.value);
  if (whole == nullptr && (real == nullptr || field.integer != nullptr)) return refuse(field);
  const double given = whole != nullptr ? static_cast<double>(*whole) : *real;
  if (!(given >= field.least && given <= field.most)) return refuse(field);
  if (field.integer != nullptr) {
    *field.integer = *whole;
  } else {
    *field.number = given;
  }
  return absl::OkStatus();
}

const Field* find(const std::vector<Field>& fields, std::string_view key) {
  for (const Field& field : fields) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

std::string keys_of(const std::vector<Field>& fields) {
  std::string keys;
  for (const Field& field : fields) keys.append(keys.empty() ? "" : ", ").append(field.key);
  return keys;
}

/// "class.2.share" → 2 and "share". Elements come in order, so the next new one is at the end.
struct Element {
  std::size_t index = 0;
  std::string_view member;
};
std::optional<Element> element_of(std::string_view key, std::string_view list) {
  if (!key.starts_with(list) || key.size() <= list.size() || key[list.size()] != '.') return {};
  key.remove_prefix(list.size() + 1);
  Element element;
  while (!key.empty() && key.front() >= '0' && key.front() <= '9' && element.index < 10'000) {
    element.index = element.index * 10 + static_cast<std::size_t>(key.front() - '0');
    key.remove_prefix(1);
  }
  if (!key.empty() && key.front() == '.') key.remove_prefix(1);
  element.member = key;
  return element;
}

absl::Status assign_member(const std::vector<Field>& fields, std::string_view member,
                           const TomlValue& value) {
  const Field* field = find(fields, member);
  if (field != nullptr) return assign(*field, value);
  return absl::InvalidArgumentError(str_cat("is not known; there are ", keys_of(fields)));
}

absl::Status apply(Draft& draft, const std::vector<Field>& fields, const TomlValue& value) {
  Scenario& s = draft.scenario;
  if (const auto element = element_of(value.key, "class")) {
    auto& classes = s.arrivals.classes;
    if (element->index > classes.size()) return absl::InvalidArgumentError("skips a [[class]]");
    if (element->index == classes.size()) classes.emplace_back();
    return assign_member(class_fields(classes[element->index]), element->member, value);
  }
  if (const auto element = element_of(value.key, "fault")) {
    if (element->index > s.faults.size()) return absl::InvalidArgumentError("skips a [[fault]]");
    if (element->index == s.faults.size()) {
      s.faults.emplace_back();
      draft.fault_roles.emplace_back();
    }
    return assign_member(fault_fields(s.faults[element->index], draft.fault_roles[element->index]),
                         element->member, value);
  }
  if (const auto element = element_of(value.key, "entrypoints.shares")) {
    auto& shares = s.entrypoint_shares;
    if (element->index == 0) shares.clear();  // a list takes the place of the one before
    if (element->index > shares.size()) return absl::InvalidArgumentError("skips an element");
    if (element->index == shares.size()) shares.push_back(0);
    return assign(number("share", shares[element->index], 0, 1e9, ""), value);
  }
  return assign_member(fields, value.key, value);
}

absl::Status check_fault(const Scenario& s, Fault& fault, const std::string& role) {
  if (role != "prefill" && role != "decode") {
    return absl::InvalidArgumentError(
        str_cat("a [[fault]] has role \"", role, "\"; it must be prefill or decode"));
  }
  fault.role = role == "prefill" ? Role::kPrefill : Role::kDecode;
  const std::int64_t ranks = fault.role == Role::kPrefill ? s.prefill_instances * s.prefill_ranks
                                                          : s.decode_instances * s.decode_ranks;
  if (fault.rank >= ranks) {
    return absl::InvalidArgumentError(str_cat("a [[fault]] has rank ", fault.rank, " of ", ranks));
  }
  if (fault.until_s == 0) fault.until_s = s.horizon_s + s.drain_s + 1;
  if (fault.until_s <= fault.at_s) {
    return absl::InvalidArgumentError("a [[fault]] must end (until_s) after it begins (at_s)");
  }
  return absl::OkStatus();
}

/// What no single value shows.
absl::Status check_whole(Draft& draft) {
  Scenario& s = draft.scenario;
  if (draft.cost_file.empty()) return absl::InvalidArgumentError("cost.file is missing");
  if (!draft.bucket_edges.empty()) {
    ASSIGN_OR_RETURN(s.bucket_edges, dataplane::routing::parse_bucket_edges(draft.bucket_edges));
  }
  if (s.warmup_s >= s.horizon_s) {
    return absl::InvalidArgumentError("warmup_s must be less than horizon_s");
  }
  if (std::max(s.prefill_instances * s.prefill_ranks, s.decode_instances * s.decode_ranks) >
      kManyRanks) {
    return absl::InvalidArgumentError(str_cat("more than ", kManyRanks, " ranks of a role"));
  }
  if (!s.entrypoint_shares.empty() &&
      static_cast<std::int64_t>(s.entrypoint_shares.size()) != s.entrypoints) {
    return absl::InvalidArgumentError("entrypoints.shares must have a share for each entrypoint");
  }
  if (s.arrivals.trace.empty() == s.arrivals.classes.empty()) {
    return absl::InvalidArgumentError("give either arrivals.trace or at least one [[class]]");
  }
  double shares = 0;
  for (const RequestClass& c : s.arrivals.classes) {
    shares += c.share;
    if (c.input_min > c.input_max) {
      return absl::InvalidArgumentError("a [[class]] has input_min above input_max");
    }
  }
  if (!s.arrivals.classes.empty() && shares <= 0) {
    return absl::InvalidArgumentError("the shares of all [[class]] are 0");
  }
  for (std::size_t i = 0; i < s.faults.size(); ++i) {
    RETURN_IF_ERROR(check_fault(s, s.faults[i], draft.fault_roles[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::NotFoundError(str_cat(path, ": cannot be read"));
  }
  return text.str();
}

std::string beside(const std::string& scenario_path, const std::string& path) {
  return (std::filesystem::path(scenario_path).parent_path() / path).lexically_normal().string();
}

/// One "key=value": the value as in the file, or plain text.
absl::StatusOr<std::vector<TomlValue>> parse_setting(const std::string& setting) {
  const std::size_t equals = setting.find('=');
  if (equals == std::string::npos) {
    return absl::InvalidArgumentError("must be key=value");
  }
  const std::string key = setting.substr(0, equals);
  const std::string value = setting.substr(equals + 1);
  auto values = common::config::parse_toml_values(str_cat("v = ", value));
  if (!values.ok()) values = common::config::parse_toml_values(str_cat("v = '", value, "'"));
  RETURN_IF_ERROR(values.status());
  for (TomlValue& given : *values) given.key.replace(0, 1, key);
  return values;
}

}  // namespace

absl::StatusOr<Scenario> read_scenario(const std::string& path,
                                       const std::vector<std::string>& settings) {
  ASSIGN_OR_RETURN(const std::string content, read_text(path));
  auto values = common::config::parse_toml_values(content);
  if (!values.ok()) return annotate(values.status(), path);
  Draft draft;
  std::vector<Field> fields = run_fields(draft);
  for (const Field& field : machine_fields(draft)) fields.push_back(field);
  for (const TomlValue& value : *values) {
    const absl::Status applied = apply(draft, fields, value);
    if (!applied.ok())
      return annotate(applied, str_cat(path, " line ", value.line, ": ", value.key));
  }
  if (!draft.cost_file.empty()) draft.cost_file = beside(path, draft.cost_file);
  auto& trace = draft.scenario.arrivals.trace;
  if (!trace.empty()) trace = beside(path, trace);
  for (const std::string& setting : settings) {
    const auto given = parse_setting(setting);
    if (!given.ok()) return annotate(given.status(), str_cat("--set ", setting));
    for (const TomlValue& value : *given) {
      const absl::Status applied = apply(draft, fields, value);
      if (!applied.ok()) return annotate(applied, str_cat("--set ", setting));
    }
  }
  const absl::Status whole = check_whole(draft);
  if (!whole.ok()) return annotate(whole, path);
  ASSIGN_OR_RETURN(const std::string cost, read_text(draft.cost_file));
  ASSIGN_OR_RETURN(draft.scenario.cost, dataplane::cost::parse_cost_file(cost, draft.cost_file));
  return std::move(draft.scenario);
}

std::string scenario_help() {
  Draft draft;
  RequestClass request_class;
  Fault fault;
  std::string role;
  std::string help;
  const auto add = [&help](std::string_view table, const std::vector<Field>& fields) {
    for (const Field& field : fields) {
      help += str_cat("  ", table, field.key, ": ", range_of(field));
      if (field.number != nullptr) help += str_cat(", default ", *field.number);
      if (field.integer != nullptr) help += str_cat(", default ", *field.integer);
      if (!field.meaning.empty()) help += str_cat("; ", field.meaning);
      help += "\n";
    }
  };
  add("", run_fields(draft));
  help += "  entrypoints.shares: a list of numbers; share of requests of each entrypoint\n";
  add("", machine_fields(draft));
  add("[[class]] ", class_fields(request_class));
  add("[[fault]] ", fault_fields(fault, role));
  return help;
}

}  // namespace millrace::sim
