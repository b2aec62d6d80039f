#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "api/entrypoint/kv_lookup.h"

namespace millrace::api::entrypoint {

/// What POST /v1/kv/explain answers about a prompt: how much of it is stored, where a prefill would
/// begin, and how many tokens it would run, beside those of a prompt that nobody has seen. Without
/// findings the cluster stores no KV.
///
///     {"prompt_tokens": 1000, "stores_kv": true, "blocks": 7, "hit_blocks": 6, "hit_tokens": 768,
///      "windows": [{"anchor": 768, "host_id": "h0"}], "start": "window", "compute_start": 768,
///      "tokens_to_run": {"now": 232, "cold": 1000}}
std::string explain_body(std::size_t prompt_tokens, const std::vector<KvFinding>& findings);

}  // namespace millrace::api::entrypoint
