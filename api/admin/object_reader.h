#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/json.h"

namespace millrace::api::admin {

/// Reads the members of one JSON object strictly: a member of the wrong type, a missing required
/// one and an unknown one are each an error that names it by its path ("processes[2].pid").
/// The first error sticks; later reads return defaults, and finish() returns it:
///
///   ObjectReader reader(json, "");
///   reader.required("node_id", join.node_id);
///   reader.optional("epoch", join.epoch);
///   RETURN_IF_ERROR(reader.finish());
///
/// Include it in .cc files only. The JSON value must outlive the reader.
class ObjectReader {
 public:
  /// `path` is what precedes a member's name in messages: "" or "processes[2].".
  ObjectReader(const Json& object, std::string path);

  void required(std::string_view key, std::string& out) { read(key, out, Presence::kRequired); }
  void required(std::string_view key, bool& out) { read(key, out, Presence::kRequired); }
  void required(std::string_view key, std::int64_t& out) { read(key, out, Presence::kRequired); }
  void required(std::string_view key, std::uint64_t& out) { read(key, out, Presence::kRequired); }
  void required(std::string_view key, double& out);
  void optional(std::string_view key, std::string& out) { read(key, out, Presence::kOptional); }
  void optional(std::string_view key, bool& out) { read(key, out, Presence::kOptional); }
  void optional(std::string_view key, std::int64_t& out) { read(key, out, Presence::kOptional); }
  void optional(std::string_view key, std::uint64_t& out) { read(key, out, Presence::kOptional); }

  /// An integer within [low, high].
  void required_between(std::string_view key, std::int64_t low, std::int64_t high,
                        std::int64_t& out);
  void optional_between(std::string_view key, std::int64_t low, std::int64_t high,
                        std::int64_t& out);

  /// A required string that `parse` turns into a value (an enumeration).
  template <typename T>
  void required_name(std::string_view key, absl::StatusOr<T> (*parse)(std::string_view), T& out) {
    std::string name;
    required(key, name);
    if (!status_.ok()) return;
    absl::StatusOr<T> value = parse(name);
    if (value.ok()) {
      out = *value;
    } else {
      fail(key, value.status());
    }
  }

  /// An object, read by `read_object(value, path) -> StatusOr<T>`.
  template <typename T>
  void optional_object(std::string_view key,
                       absl::StatusOr<T> (*read_object)(const Json&, std::string), T& out) {
    read_with(key, Presence::kOptional, read_object, out);
  }
  template <typename T>
  void required_object(std::string_view key,
                       absl::StatusOr<T> (*read_object)(const Json&, std::string), T& out) {
    read_with(key, Presence::kRequired, read_object, out);
  }

  /// A required array of objects, each read by `read_item(item, path) -> StatusOr<T>`.
  template <typename T>
  void required_list(std::string_view key, std::size_t max_items,
                     absl::StatusOr<T> (*read_item)(const Json&, std::string),
                     std::vector<T>& out) {
    const Json* list = take(key, Presence::kRequired);
    if (list == nullptr || !check_list(key, *list, max_items)) return;
    for (std::size_t index = 0; index < list->size(); ++index) {
      absl::StatusOr<T> item = read_item((*list)[index], item_path(key, index));
      if (!item.ok()) {
        if (status_.ok()) status_ = item.status();
        return;
      }
      out.push_back(std::move(*item));
    }
  }

  /// A required array of integers from 0 to 2^53.
  void required_list(std::string_view key, std::size_t max_items, std::vector<std::uint64_t>& out);

  /// True when the member is there and not null; marks it as known.
  bool has(std::string_view key);

  /// Records an error about a member, unless one is recorded already.
  void fail(std::string_view key, const absl::Status& status);

  /// The first error; else an error when the object has a member that nothing asked for.
  absl::Status finish();

 private:
  enum class Presence { kRequired, kOptional };

  template <typename T>
  void read_with(std::string_view key, Presence presence,
                 absl::StatusOr<T> (*read_object)(const Json&, std::string), T& out) {
    const Json* object = take(key, presence);
    if (object == nullptr) return;
    absl::StatusOr<T> value = read_object(*object, member_path(key));
    if (value.ok()) {
      out = std::move(*value);
    } else if (status_.ok()) {
      status_ = value.status();
    }
  }

  const Json* take(std::string_view key, Presence presence);
  bool check_list(std::string_view key, const Json& list, std::size_t max_items);
  std::string member_path(std::string_view key) const;
  std::string item_path(std::string_view key, std::size_t index) const;
  void wrong_type(std::string_view key, std::string_view expected);

  void read(std::string_view key, std::string& out, Presence presence);
  void read(std::string_view key, bool& out, Presence presence);
  void read(std::string_view key, std::int64_t& out, Presence presence);
  void read(std::string_view key, std::uint64_t& out, Presence presence);

  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
  absl::Status status_;
};

}  // namespace millrace::api::admin
