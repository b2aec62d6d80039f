#include "api/entrypoint/kv_explain.h"

#include <algorithm>
#include <utility>

#include "common/json.h"
#include "dataplane/kv/hit_policy.h"

namespace millrace::api::entrypoint {
namespace {

bool has_window(const KvScope& scope, std::uint32_t anchor) {
  return std::any_of(scope.windows.begin(), scope.windows.end(),
                     [anchor](const KvWindow& window) { return window.anchor == anchor; });
}

}  // namespace

std::string explain_body(std::size_t prompt_tokens, const std::vector<KvFinding>& findings) {
  const KvFinding finding = findings.empty() ? KvFinding{} : findings.front();
  const std::uint32_t hit = finding.scope.hit_tokens;
  const std::uint32_t block = dataplane::kv::kBlockTokens;
  const bool has_earlier = hit > block && has_window(finding.scope, hit - block);
  const dataplane::kv::HitPlan plan =
      dataplane::kv::plan_hit(static_cast<int>(prompt_tokens), static_cast<int>(hit),
                              has_window(finding.scope, hit), has_earlier);
  Json windows = Json::array();
  for (const KvWindow& window : finding.scope.windows) {
    windows.push_back(Json{{"anchor", window.anchor}, {"host_id", window.at.host_id}});
  }
  Json body = Json::object();
  body["prompt_tokens"] = prompt_tokens;
  body["stores_kv"] = !findings.empty();
  body["blocks"] = finding.blocks;
  body["hit_blocks"] = finding.hit_blocks;
  body["hit_tokens"] = hit;
  body["windows"] = std::move(windows);
  body["start"] = dataplane::kv::replay_kind_name(plan.kind);
  body["compute_start"] = plan.compute_start;
  body["tokens_to_run"]["now"] = prompt_tokens - static_cast<std::size_t>(plan.compute_start);
  body["tokens_to_run"]["cold"] = prompt_tokens;
  return dump_json(body);
}

}  // namespace millrace::api::entrypoint
