#include "api/recipe/markup_tags.h"

#include "common/str_cat.h"

namespace millrace::api::recipe {

TagSet::TagSet(std::initializer_list<Tag> tags) : nodes_(1) {
  for (const Tag tag : tags) {
    for (const std::string_view space : {"", " "}) {
      for (const std::string_view block : {"tool_calls>", "calls>", "function_calls>"}) {
        if (tag == Tag::kBlockOpen) add("<", true, str_cat(space, block), tag);
        if (tag == Tag::kBlockClose) add("</", true, str_cat(space, block), tag);
      }
      if (tag == Tag::kInvokeOpen) add("<", true, str_cat(space, "invoke name=\""), tag);
      if (tag == Tag::kInvokeClose) add("</", true, str_cat(space, "invoke>"), tag);
      if (tag == Tag::kParameterOpen) add("<", true, str_cat(space, "parameter name=\""), tag);
      if (tag == Tag::kParameterClose) add("</", true, str_cat(space, "parameter>"), tag);
    }
    if (tag == Tag::kBareParameterOpen) add("<", false, "parameter name=\"", tag);
    if (tag == Tag::kBareParameterClose) add("</", false, "parameter>", tag);
  }
}

void TagSet::add(std::string_view bracket, bool has_marker, std::string_view rest, Tag tag) {
  int state = kRoot;
  for (const char c : bracket) state = child(state, static_cast<unsigned char>(c));
  if (has_marker) state = child(state, kMarker);
  for (const char c : rest) state = child(state, static_cast<unsigned char>(c));
  nodes_[static_cast<std::size_t>(state)].tag = tag;
}

int TagSet::child(int state, int symbol) {
  if (const int known = next(state, symbol); known != kNowhere) return known;
  const int added = static_cast<int>(nodes_.size());
  nodes_[static_cast<std::size_t>(state)].next.emplace_back(symbol, added);
  nodes_.emplace_back();
  return added;
}

int TagSet::next(int state, int symbol) const {
  for (const auto& [known, node] : nodes_[static_cast<std::size_t>(state)].next) {
    if (known == symbol) return node;
  }
  return kNowhere;
}

}  // namespace millrace::api::recipe
