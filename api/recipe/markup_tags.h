#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::api::recipe {

/// The marker `｜DSML｜` among symbols; bytes are symbols 0 to 255.
inline constexpr int kMarker = 256;

enum class Tag {
  kNone,
  kBlockOpen,           ///< <｜DSML｜tool_calls>
  kBlockClose,          ///< </｜DSML｜tool_calls>
  kInvokeOpen,          ///< <｜DSML｜invoke name="
  kInvokeClose,         ///< </｜DSML｜invoke>
  kParameterOpen,       ///< <｜DSML｜parameter name="
  kParameterClose,      ///< </｜DSML｜parameter>
  kBareParameterOpen,   ///< <parameter name="
  kBareParameterClose,  ///< </parameter>
};

/// A set of tags, recognised symbol by symbol. Names count in both dialects (V4 and V4.1), blocks
/// also by the name of V3.2. All tags begin with `<` and have none further on, so a tag that breaks
/// off can only be followed by a new one: going on from kRoot with the same symbol is enough.
class TagSet {
 public:
  static constexpr int kRoot = 0;
  static constexpr int kNowhere = -1;

  explicit TagSet(std::initializer_list<Tag> tags);

  /// The state behind `symbol`, or kNowhere when no tag goes on with it.
  int next(int state, int symbol) const;
  /// The tag that is complete in a state.
  Tag tag(int state) const { return nodes_[static_cast<std::size_t>(state)].tag; }

 private:
  struct Node {
    std::vector<std::pair<int, int>> next;  // symbol, node; few
    Tag tag = Tag::kNone;
  };
  void add(std::string_view bracket, bool has_marker, std::string_view rest, Tag tag);
  int child(int state, int symbol);

  std::vector<Node> nodes_;
};

}  // namespace millrace::api::recipe
