#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"

namespace millrace::api::recipe {

/// Bounds of the pictures in a request.
inline constexpr std::size_t kMaxImages = 100;
inline constexpr std::size_t kMaxImageBytes = 20u << 20;  ///< of one, decoded
inline constexpr std::size_t kMaxImageUrlBytes = 8192;
inline constexpr std::uint32_t kMaxImageSide = 16384;         ///< pixels
inline constexpr std::uint64_t kMaxImagePixels = 64'000'000;  ///< of one

/// What the head of a picture's file says.
struct ImageHead {
  std::string_view media_type;  ///< image/png, image/jpeg, image/gif or image/webp
  std::uint32_t width = 0;      ///< pixels
  std::uint32_t height = 0;
};

/// Reads the head of a PNG, JPEG, GIF or WebP file; kInvalidArgument for anything else, and when
/// the head is damaged or cut off. The pixels themselves are not looked at.
absl::StatusOr<ImageHead> read_image_head(std::string_view bytes);

/// Takes the pictures of one request, whatever its protocol calls them, and checks them. What it
/// gives is a part for the conversation whose text is the picture's reference:
/// "sha256:" and the digest of its bytes in hexadecimal digits, or its http(s) address.
///
/// `path` is the field, for errors, which are kInvalidArgument.
class ImageReader {
 public:
  /// An address, or the data itself as "data:image/png;base64,...".
  absl::StatusOr<Part> read_url(std::string_view url, const std::string& path);
  /// Base64 of a file that is said to be of this type.
  absl::StatusOr<Part> read_base64(std::string_view media_type, std::string_view data,
                                   const std::string& path);

  /// The fields of the pictures, in order, for Conversation::image_fields.
  std::vector<std::string> take_fields() { return std::move(fields_); }

 private:
  absl::StatusOr<Part> take(std::string reference, const std::string& path);

  std::vector<std::string> fields_;
};

/// kInvalidArgument that names the first picture: nothing in this deployment turns them into rows
/// for the model. OK when there is none.
absl::Status refuse_images(const Conversation& conversation);

}  // namespace millrace::api::recipe
