#pragma once

#include <cstdint>
#include <string>

namespace millrace::dataplane::transfer {

/// Where the KV of positions [0, computed_tokens) of a request lies, and what it must look like.
struct Handover {
  std::string source_worker;
  std::string source_address;  ///< host:port of the source's KvTransfer service
  std::string host_id;         ///< equal to ours: shared memory; else the stream
  std::uint64_t export_id = 0;
  std::string shm_name;
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  ///< CRC-32C
  int computed_tokens = 0;
  std::string layout_id;
};

}  // namespace millrace::dataplane::transfer
