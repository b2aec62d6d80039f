#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/trace/trace.h"
#include "common/types.h"
#include "deploy/cli/prompt_text.h"

namespace millrace::deploy::cli {

using common::trace::RequestShape;

/// What is sent, to whom, how fast.
struct LoadOptions {
  std::string url = {};
  std::string model = {};
  int concurrency = 1;         ///< requests in flight at most, one thread each
  bool keep_arrivals = false;  ///< requests begin at their times; else as soon as one may
  std::uint64_t seed = 0;
  std::chrono::milliseconds timeout{0};  ///< of one request; zero: none
};

/// How one request went. Times are counted from when it should have begun: with arrivals kept, a
/// request that waits for a free slot has waited.
struct RequestResult {
  std::string error = {};  ///< empty: it got exactly the tokens it asked for
  int prompt_tokens = 0;
  int output_tokens = 0;
  double first_token_s = 0;  ///< time to first token
  double end_s = 0;          ///< time to the end of the answer
  double seconds_per_token =
      -1;  ///< mean time between tokens after the first; -1 with fewer than two
};

struct LoadResult {
  std::vector<RequestResult> requests = {};  ///< in the order of the shapes
  double duration_s = 0;
};

/// Called about four times a second while the load runs, and at the end.
using LoadProgress = std::function<void(int finished, int failed, int tokens)>;

/// Sends every shape as a prompt of made-up text and an answer of exactly output_tokens tokens (at
/// least one each).
LoadResult run_load(const LoadOptions& options, const std::vector<RequestShape>& shapes,
                    const PromptText& text, const LoadProgress& progress);

/// Shortens prompts (never answers, except one that is too long by itself) until prompt and answer
/// fit `max_model_len` together. Returns how many requests it changed.
int clip_to_context(std::vector<RequestShape>& shapes, int max_model_len);

}  // namespace millrace::deploy::cli
