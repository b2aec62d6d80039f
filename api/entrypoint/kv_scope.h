#pragma once

#include <cstdint>
#include <vector>

#include "storage/kv/hash_chain.h"
#include "storage/kv/ttl_class.h"
#include "storage/swa/window_location.h"

namespace millrace::api::entrypoint {

/// A stored window, for a prefill that starts behind it.
struct KvWindow {
  std::uint32_t anchor = 0;  ///< the position it ends at; whole blocks
  storage::swa::WindowLocation at;
};

/// Where KV of a prompt may be found, and under which names new KV of it is kept.
struct KvScope {
  storage::kv::Salt salt{};
  storage::TtlClass ttl = storage::TtlClass::kChatbot;
  std::uint32_t hit_tokens = 0;   ///< leading ones whose blocks are believed stored; whole blocks
  std::vector<KvWindow> windows;  ///< at the hit's end or a block before it; perhaps none
};

}  // namespace millrace::api::entrypoint
