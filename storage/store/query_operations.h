#pragma once

#include <map>
#include <memory>
#include <vector>

#include "storage/store/store_context.h"

namespace millrace::storage::store {

/// Batched existence: each key is asked of one member, the owner of its block, or the next that is
/// up and answers; the keys of one target travel together. A target that fails or is late is
/// replaced once, by the next member of each key's group.
class QueryOperations {
 public:
  explicit QueryOperations(StoreContext& context) : context_(context) {}

  void start(StartQuery query, TimePoint now);
  void on_answer(const Outstanding& note, const ShardReply& reply, TimePoint now);
  void on_deadline(std::uint64_t id);
  void on_overdue(std::uint64_t part_id, TimePoint now);
  void stop();

 private:
  struct Query {
    StartQuery query;
    std::shared_ptr<const StorageMap> map;
    std::vector<bool> present;
    std::size_t open_parts = 0;
  };
  /// What one target was asked. A part outlives its query until the answer comes.
  struct Part {
    std::uint64_t query = 0;
    std::string target_id;
    std::vector<std::size_t> keys;  ///< indices
    bool is_second = false;
    bool is_open = true;
  };

  void ask(std::uint64_t query_id, Query& query, const std::vector<std::size_t>& keys,
           std::string_view without, TimePoint now);
  /// The target to ask for a key; null when there is none.
  const std::string* pick(const StorageMap& map, const BlockKey& key,
                          std::string_view without) const;
  void replace(Part& part, TimePoint now);
  void close(Part& part);
  void finish(std::uint64_t query_id);

  StoreContext& context_;
  std::map<std::uint64_t, Query> queries_;
  std::map<std::uint64_t, Part> parts_;
};

}  // namespace millrace::storage::store
