#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/model_names.h"
#include "common/json_fwd.h"

namespace millrace::api::recipe {

/// Typed access to the fields of a request; null counts as absent. Errors name the field.
///
/// `where` is the path of the object ("" for the body itself, "messages[0]" inside).
class Fields {
 public:
  Fields(const Json& object, std::string where);

  /// The member, or nullptr when absent or null.
  const Json* find(std::string_view name) const;
  /// The field's path in messages.
  std::string path(std::string_view name) const;

  absl::StatusOr<std::optional<bool>> boolean(std::string_view name) const;
  absl::StatusOr<std::optional<std::string>> string(std::string_view name) const;
  /// Between low and high, both allowed.
  absl::StatusOr<std::optional<std::int64_t>> integer(std::string_view name, std::int64_t low,
                                                      std::int64_t high) const;
  absl::StatusOr<std::optional<double>> number(std::string_view name, double low,
                                               double high) const;
  absl::Status require_object(std::string_view name) const;
  /// These fields must be absent.
  absl::Status refuse(std::initializer_list<std::string_view> names) const;

 private:
  const Json& object_;
  std::string where_;
};

/// A field's path in another spelling: "tools[0].name" is "tools.0.name".
std::string dotted(std::string_view path);

/// Parses a request body; kInvalidArgument unless it is a JSON object whose texts have no NUL.
absl::StatusOr<Json> parse_body(std::string_view body);

/// The `model` field against the one model that is served.
absl::Status check_model(const Fields& body, const ModelNames& served);

/// Of a request's stop strings, whatever its protocol calls them.
inline constexpr std::size_t kMaxStops = 16;
inline constexpr std::size_t kMaxStopBytes = 1024;
inline constexpr std::size_t kMaxStopTokens = 256;

/// Answers to one prompt.
inline constexpr std::int64_t kMaxChoices = 16;

/// The sampling fields that the protocols of OpenAI's family share (all but log probabilities).
/// What other servers take to hold an answer to a grammar or a schema is refused by name.
absl::StatusOr<Sampling> read_sampling(const Fields& body, int vocab_size);

/// `stream` and `stream_options`.
struct StreamOptions {
  bool is_streamed = false;
  bool include_usage = false;
};
absl::StatusOr<StreamOptions> read_stream_options(const Fields& body);

}  // namespace millrace::api::recipe
