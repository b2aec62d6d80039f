#include "api/tokenizer/token_index.h"

namespace millrace::api::tokenizer {

bool TokenIndex::add(std::string_view bytes, TokenId id) {
  if (bytes.size() > kShortBytes) return long_tokens_.emplace(bytes, id).second;
  const Key key = key_of(bytes, bytes.size());
  const auto put = [&](auto& slot, const auto& entry) {
    if (slot.length != 0) return false;
    slot = entry;
    return true;
  };
  if (bytes.size() <= 8) {
    const Small entry{key.low, length_of(bytes), id};
    return put(small_.at(entry), entry);
  }
  const Medium entry{key.low, key.high, length_of(bytes), id};
  return put(medium_.at(entry), entry);
}

void TokenIndex::remove(std::string_view bytes) {
  if (find(bytes, bytes.size()) < 0) return;
  const Key key = key_of(bytes, bytes.size());
  if (bytes.size() <= 8) {
    small_.at({key.low, length_of(bytes)}).id = -1;
  } else if (bytes.size() <= kShortBytes) {
    medium_.at({key.low, key.high, length_of(bytes)}).id = -1;
  } else {
    long_tokens_.erase(std::string(bytes));
  }
}

TokenId TokenIndex::find(std::string_view bytes, std::size_t readable) const {
  if (bytes.empty()) return -1;
  if (bytes.size() <= kShortBytes) return find_short(bytes, readable);
  const auto it = long_tokens_.find(std::string(bytes));
  return it == long_tokens_.end() ? -1 : it->second;
}

void TokenIndex::prefetch(std::string_view bytes, std::size_t readable) const {
  if (bytes.empty() || bytes.size() > kShortBytes) return;
  const Key key = key_of(bytes, readable);
  if (bytes.size() <= 8) {
    small_.prefetch({key.low, length_of(bytes)});
  } else {
    medium_.prefetch({key.low, key.high, length_of(bytes)});
  }
}

}  // namespace millrace::api::tokenizer
