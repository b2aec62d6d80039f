#include "api/entrypoint/charge_book.h"

namespace millrace::api::entrypoint {

void ChargeBook::charge(const dataplane::routing::RequestSize& size) {
  open_.push_back(size);
  tokens_ += size.tokens;
  kv_blocks_ += size.kv_blocks;
}

void ChargeBook::settle(std::uint64_t started_requests) {
  while (settled_ < started_requests && !open_.empty()) {
    tokens_ -= open_.front().tokens;
    kv_blocks_ -= open_.front().kv_blocks;
    open_.pop_front();
    ++settled_;
  }
}

void ChargeBook::add_to(dataplane::routing::WorkerSnapshot& snapshot) const {
  snapshot.charged_requests += open_.size();
  snapshot.charged_tokens += tokens_;
  snapshot.charged_kv_blocks += kv_blocks_;
}

}  // namespace millrace::api::entrypoint
