#include "api/recipe/image_reference.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "api/recipe/request_error.h"
#include "common/crypto/sha256.h"
#include "common/hex.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::array<std::string_view, 4> kMediaTypes = {"image/png", "image/jpeg", "image/gif",
                                                         "image/webp"};
constexpr std::string_view kAllowed = "PNG, JPEG, GIF or WebP";

/// Numbers at places of a file that may be cut off.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}

  bool has(std::size_t at, std::string_view what) const {
    return bytes_.size() >= at && bytes_.substr(at, what.size()) == what;
  }
  std::optional<std::uint32_t> big_endian(std::size_t at, std::size_t count) const {
    if (at > bytes_.size() || bytes_.size() - at < count) return std::nullopt;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value = value << 8 | byte(at + i);
    return value;
  }
  std::optional<std::uint32_t> little_endian(std::size_t at, std::size_t count) const {
    if (at > bytes_.size() || bytes_.size() - at < count) return std::nullopt;
    std::uint32_t value = 0;
    for (std::size_t i = count; i-- > 0;) value = value << 8 | byte(at + i);
    return value;
  }

 private:
  std::uint32_t byte(std::size_t at) const { return static_cast<unsigned char>(bytes_[at]); }
  std::string_view bytes_;
};

using Size = std::optional<std::pair<std::uint32_t, std::uint32_t>>;

Size both(std::optional<std::uint32_t> width, std::optional<std::uint32_t> height) {
  return width && height ? Size({*width, *height}) : std::nullopt;
}

/// Signature, then the chunk IHDR with width and height.
Size png_size(const Bytes& file) {
  return file.has(12, "IHDR") ? both(file.big_endian(16, 4), file.big_endian(20, 4)) : std::nullopt;
}

/// Segments up to the first frame header: FF, its kind, its length, precision, height, width.
Size jpeg_size(const Bytes& file) {
  std::size_t at = 2;
  while (true) {
    const auto mark = file.big_endian(at, 2);
    if (!mark || *mark >> 8 != 0xff) return std::nullopt;
    const std::uint32_t kind = *mark & 0xff;
    if (kind == 0xff) {  // padding
      ++at;
      continue;
    }
    const bool is_frame =
        kind >= 0xc0 && kind <= 0xcf && kind != 0xc4 && kind != 0xc8 && kind != 0xcc;
    if (is_frame) return both(file.big_endian(at + 7, 2), file.big_endian(at + 5, 2));
    const bool is_bare = kind == 0x01 || (kind >= 0xd0 && kind <= 0xd8);
    const auto length = is_bare ? std::optional<std::uint32_t>(0) : file.big_endian(at + 2, 2);
    if (!length || kind == 0xd9 || kind == 0xda) return std::nullopt;
    at += 2 + *length;
  }
}

/// Three kinds of first chunk, each with its own place for the size.
Size webp_size(const Bytes& file) {
  if (file.has(12, "VP8X")) {
    const auto width = file.little_endian(24, 3);
    const auto height = file.little_endian(27, 3);
    return width && height ? Size({*width + 1, *height + 1}) : std::nullopt;
  }
  if (file.has(12, "VP8L")) {
    const auto bits = file.little_endian(21, 4);
    return bits ? Size({(*bits & 0x3fff) + 1, (*bits >> 14 & 0x3fff) + 1}) : std::nullopt;
  }
  const auto width = file.little_endian(26, 2);
  const auto height = file.little_endian(28, 2);
  const bool is_key_frame = file.has(12, "VP8 ") && file.has(23, "\x9d\x01\x2a");
  return is_key_frame && width && height ? Size({*width & 0x3fff, *height & 0x3fff}) : std::nullopt;
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool is_web_address(std::string_view url) {
  const std::size_t colon = url.find("://");
  const std::string scheme = lower_case(url.substr(0, std::min(colon, url.size())));
  if (scheme != "http" && scheme != "https") return false;
  const bool is_plain = std::all_of(url.begin(), url.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != 127;
  });
  return is_plain && url.size() > colon + 3 && url[colon + 3] != '/';
}

absl::Status check_size(const ImageHead& head, const std::string& path) {
  const bool is_good = head.width > 0 && head.height > 0 && head.width <= kMaxImageSide &&
                       head.height <= kMaxImageSide &&
                       std::uint64_t{head.width} * head.height <= kMaxImagePixels;
  if (is_good) return absl::OkStatus();
  return field_error(
      path,
      str_cat("`", path, "` has ", head.width, " x ", head.height, " pixels; a side may have 1 to ",
              kMaxImageSide, ", the whole ", kMaxImagePixels),
      "invalid_image");
}

}  // namespace

absl::StatusOr<ImageHead> read_image_head(std::string_view bytes) {
  const Bytes file(bytes);
  ImageHead head;
  Size size;
  if (file.has(0, "\x89PNG\r\n\x1a\n")) {
    head.media_type = "image/png";
    size = png_size(file);
  } else if (file.has(0, "\xff\xd8\xff")) {
    head.media_type = "image/jpeg";
    size = jpeg_size(file);
  } else if (file.has(0, "GIF87a") || file.has(0, "GIF89a")) {
    head.media_type = "image/gif";
    size = both(file.little_endian(6, 2), file.little_endian(8, 2));
  } else if (file.has(0, "RIFF") && file.has(8, "WEBP")) {
    head.media_type = "image/webp";
    size = webp_size(file);
  } else {
    return absl::InvalidArgumentError(str_cat("is no ", kAllowed, " file"));
  }
  if (!size) {
    return absl::InvalidArgumentError(
        str_cat("begins like ", head.media_type, ", but its head is damaged or cut off"));
  }
  std::tie(head.width, head.height) = *size;
  return head;
}

absl::StatusOr<Part> ImageReader::read_url(std::string_view url, const std::string& path) {
  constexpr std::string_view kData = "data:";
  if (lower_case(url.substr(0, kData.size())) != kData) {
    if (url.size() > kMaxImageUrlBytes || !is_web_address(url)) {
      return field_error(path,
                         str_cat("`", path, "` must be an http or https address of at most ",
                                 kMaxImageUrlBytes, " bytes, or data:image/...;base64,..."),
                         "invalid_image_url");
    }
    return take(std::string(url), path);
  }
  const std::size_t comma = url.find(',');
  const std::string head = lower_case(url.substr(0, std::min(comma, kMaxImageUrlBytes)));
  constexpr std::string_view kBase64 = ";base64";
  if (comma == std::string_view::npos || !head.ends_with(kBase64)) {
    return field_error(path, str_cat("data in `", path, "` must be data:image/...;base64,..."),
                       "invalid_image_url");
  }
  std::string_view type = std::string_view(head).substr(kData.size());
  type = type.substr(0, type.find(';'));
  return read_base64(type, url.substr(comma + 1), path);
}

absl::StatusOr<Part> ImageReader::read_base64(std::string_view media_type, std::string_view data,
                                              const std::string& path) {
  if (std::find(kMediaTypes.begin(), kMediaTypes.end(), media_type) == kMediaTypes.end()) {
    return field_error(path,
                       str_cat("`", path,
                               "` must be of type image/png, image/jpeg, image/gif or image/webp, "
                               "is \"",
                               media_type.substr(0, 80), "\""),
                       "invalid_image_format");
  }
  if (data.size() / 4 * 3 > kMaxImageBytes) {
    return field_error(path, str_cat("`", path, "` may have at most ", kMaxImageBytes, " bytes"),
                       "image_too_large");
  }
  std::string bytes;
  if (data.empty() || !absl::Base64Unescape(to_absl(data), &bytes)) {
    return field_error(path, str_cat("`", path, "` is not valid base64"), "invalid_base64");
  }
  const absl::StatusOr<ImageHead> head = read_image_head(bytes);
  if (!head.ok()) {
    return field_error(path, str_cat("`", path, "` ", message_of(head.status())), "invalid_image");
  }
  if (head->media_type != media_type) {
    return field_error(
        path, str_cat("`", path, "` is said to be ", media_type, ", but is ", head->media_type),
        "invalid_image_format");
  }
  RETURN_IF_ERROR(check_size(*head, path));
  Sha256 digest;
  digest.update(bytes);
  return take("sha256:" + to_hex(digest.finish()), path);
}

absl::StatusOr<Part> ImageReader::take(std::string reference, const std::string& path) {
  if (fields_.size() >= kMaxImages) {
    return field_error(path, str_cat("a request may have at most ", kMaxImages, " images"),
                       "too_many_images");
  }
  fields_.push_back(path);
  return Part{.text = std::move(reference), .kind = Part::Kind::kImage};
}

absl::Status refuse_images(const Conversation& conversation) {
  if (conversation.image_fields.empty()) return absl::OkStatus();
  const std::string& path = conversation.image_fields.front();
  return field_error(path, str_cat("`", path, "` is an image, but this deployment has no encoder"),
                     "unsupported_content");
}

}  // namespace millrace::api::recipe
