#include "deploy/cli/load_generator.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "common/str_cat.h"
#include "deploy/cli/completion_client.h"

namespace millrace::deploy::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Counters {
  std::atomic<std::size_t> next = 0;
  std::atomic<int> finished = 0;
  std::atomic<int> failed = 0;
  std::atomic<int> tokens = 0;
};

RequestResult run_request(CompletionClient& client, const LoadOptions& options,
                          const RequestShape& shape, std::vector<TokenId> prompt_ids,
                          Clock::time_point begin, Counters& counters) {
  TextRequest request;
  request.model = options.model;
  request.prompt_ids = std::move(prompt_ids);
  request.max_tokens = shape.output_tokens;
  request.ignore_eos = true;
  request.echo_ids = true;

  Clock::time_point first;
  Clock::time_point last;
  int received = 0;
  const auto answer = client.complete(request, [&](const Delta& delta) {
    last = Clock::now();
    if (received == 0) first = last;
    received += static_cast<int>(delta.ids.size());
    counters.tokens += static_cast<int>(delta.ids.size());
    return true;
  });

  RequestResult result;
  result.prompt_tokens = shape.input_tokens;
  result.end_s = seconds_between(begin, Clock::now());
  if (!answer.ok()) {
    result.error = std::string(message_of(answer.status()));
    return result;
  }
  result.output_tokens = received;
  if (received != shape.output_tokens || answer->completion_tokens != shape.output_tokens) {
    result.error = str_cat("asked for ", shape.output_tokens, " tokens, got ", received,
                           " (usage says ", answer->completion_tokens, ")");
    return result;
  }
  result.first_token_s = seconds_between(begin, first);
  if (received > 1) result.seconds_per_token = seconds_between(first, last) / (received - 1);
  return result;
}

void run_slot(const LoadOptions& options, const std::vector<RequestShape>& shapes,
              const PromptText& text, Clock::time_point start, Counters& counters,
              std::vector<RequestResult>& results) {
  CompletionClient client(options.url, options.timeout);
  while (true) {
    const std::size_t index = counters.next++;
    if (index >= shapes.size()) return;
    const RequestShape& shape = shapes[index];
    RequestResult& result = results[index];
    auto ids = text.token_ids(options.seed + index, shape.input_tokens);
    if (ids.ok()) {
      Clock::time_point begin = Clock::now();
      if (options.keep_arrivals) {
        begin = start + std::chrono::duration_cast<Clock::duration>(shape.arrival);
        std::this_thread::sleep_until(begin);
      }
      result = run_request(client, options, shape, *std::move(ids), begin, counters);
    } else {
      result.error = std::string(message_of(ids.status()));
    }
    if (!result.error.empty()) ++counters.failed;
    ++counters.finished;
  }
}

}  // namespace

LoadResult run_load(const LoadOptions& options, const std::vector<RequestShape>& shapes,
                    const PromptText& text, const LoadProgress& progress) {
  Counters counters;
  LoadResult load;
  load.requests.resize(shapes.size());
  const Clock::time_point start = Clock::now();
  std::mutex mutex;
  std::condition_variable slot_ended;
  int running = std::min(options.concurrency, static_cast<int>(shapes.size()));
  std::vector<std::thread> slots;
  slots.reserve(static_cast<std::size_t>(running));
  for (int i = running; i > 0; --i) {
    slots.emplace_back([&] {
      run_slot(options, shapes, text, start, counters, load.requests);
      const std::lock_guard lock(mutex);
      --running;
      slot_ended.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    while (
        !slot_ended.wait_for(lock, std::chrono::milliseconds(250), [&] { return running == 0; })) {
      lock.unlock();
      progress(counters.finished, counters.failed, counters.tokens);
      lock.lock();
    }
  }
  for (std::thread& slot : slots) slot.join();
  load.duration_s = seconds_between(start, Clock::now());
  progress(counters.finished, counters.failed, counters.tokens);
  return load;
}

int clip_to_context(std::vector<RequestShape>& shapes, int max_model_len) {
  int clipped = 0;
  for (RequestShape& shape : shapes) {
    const int output = std::min(shape.output_tokens, max_model_len - 1);
    const int input = std::min(shape.input_tokens, max_model_len - output);
    if (output != shape.output_tokens || input != shape.input_tokens) ++clipped;
    shape.output_tokens = output;
    shape.input_tokens = input;
  }
  return clipped;
}

}  // namespace millrace::deploy::cli
