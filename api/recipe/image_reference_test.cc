#include "api/recipe/image_reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "api/recipe/chat_request.h"
#include "api/recipe/messages_request.h"
#include "api/recipe/prompt.h"
#include "api/recipe/request_error.h"
#include "api/recipe/test_fixtures.h"
#include "common/crypto/sha256.h"
#include "common/hex.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;

const std::string kPng =
    "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0"s;  // 640 x 480
const std::string kJpeg =
    "\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0\xff\xff\xc2\0\x11\x08\x01\xe0\x02\x80\3"s;
const std::string kGif = "GIF89a\x80\x02\xe0\x01\xf7\0\0"s;
const std::string kWebp = "RIFF\x24\0\0\0WEBPVP8 \x18\0\0\0\x30\1\0\x9d\1\x2a\x80\x02\xe0\x01"s;
const std::string kWebpLossless = "RIFF\x24\0\0\0WEBPVP8L\x18\0\0\0\x2f\x7f\xc2\x77\0"s;
const std::string kWebpExtended = "RIFF\x24\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0\x7f\x02\0\xdf\x01\0"s;

std::string base64(std::string_view bytes) { return absl::Base64Escape(to_absl(bytes)); }

std::string reference_of(std::string_view bytes) {
  Sha256 digest;
  digest.update(bytes);
  return "sha256:" + to_hex(digest.finish());
}

std::string url_error(const std::string& url) {
  ImageReader reader;
  const auto part = reader.read_url(url, "here");
  EXPECT_EQ(part.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error_details(part.status()).param, "here");
  return std::string(message_of(part.status()));
}

std::string base64_error(std::string_view type, const std::string& data) {
  ImageReader reader;
  const auto part = reader.read_base64(type, data, "here");
  EXPECT_EQ(part.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(message_of(part.status()));
}

TEST(ImageHead, IsReadFromEveryFormat) {
  for (const auto& [bytes, type] :
       {std::pair(kPng, "image/png"), std::pair(kJpeg, "image/jpeg"), std::pair(kGif, "image/gif"),
        std::pair(kWebp, "image/webp"), std::pair(kWebpLossless, "image/webp"),
        std::pair(kWebpExtended, "image/webp")}) {
    const auto head = read_image_head(bytes);
    ASSERT_TRUE(head.ok()) << head.status();
    EXPECT_EQ(head->media_type, type);
    EXPECT_EQ(head->width, 640u) << type;
    EXPECT_EQ(head->height, 480u) << type;
  }
}

TEST(ImageHead, ACutOffFileIsRefusedWhereverItEnds) {
  for (const std::string& bytes : {kPng, kJpeg, kGif, kWebp, kWebpLossless, kWebpExtended}) {
    const std::size_t needed = bytes == kPng    ? 24
                               : bytes == kJpeg ? bytes.size() - 1
                               : bytes == kGif  ? 10
                                                : bytes.size();
    for (std::size_t size = 0; size < needed; ++size) {
      EXPECT_FALSE(read_image_head(bytes.substr(0, size)).ok()) << size << " of " << bytes;
    }
  }
  EXPECT_FALSE(read_image_head("\xff\xd8\xff\xda\0\x08rest"s).ok());  // a scan without a frame
  EXPECT_FALSE(read_image_head("BM not a format that is taken").ok());
}

TEST(ImageReader, GivesADigestOfDataAndAnAddressAsItIs) {
  ImageReader reader;
  const auto data = reader.read_url("data:image/png;base64," + base64(kPng), "a");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(*data, (Part{reference_of(kPng), Part::Kind::kImage}));
  const auto address = reader.read_url("https://host.example/p.png?x=1", "b");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->text, "https://host.example/p.png?x=1");
  EXPECT_TRUE(reader.read_base64("image/jpeg", base64(kJpeg), "c").ok());
  EXPECT_EQ(reader.take_fields(), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(ImageReader, RefusesWhatIsNoImage) {
  for (const char* url : {"", "x", "ftp://host.example/x", "http://", "http:///x", "https://a b",
                          "file:///etc/passwd"}) {
    EXPECT_THAT(url_error(url), HasSubstr("http or https address")) << url;
  }
  EXPECT_THAT(url_error("https://host.example/" + std::string(kMaxImageUrlBytes, 'x')),
              HasSubstr("8192"));
  EXPECT_THAT(url_error("data:image/png," + kPng), HasSubstr(";base64,"));
  EXPECT_THAT(url_error("data:image/png;base64"), HasSubstr(";base64,"));
  EXPECT_THAT(url_error("data:image/bmp;base64,QUJD"), HasSubstr("image/png, image/jpeg"));
  EXPECT_THAT(base64_error("image/png", ""), HasSubstr("base64"));
  EXPECT_THAT(base64_error("image/png", "A*"), HasSubstr("base64"));
  EXPECT_THAT(base64_error("image/png", base64("not a picture")), HasSubstr("PNG, JPEG"));
  EXPECT_THAT(base64_error("image/png", base64(kPng.substr(0, 20))), HasSubstr("cut off"));
  EXPECT_THAT(base64_error("image/png", base64(kGif)), HasSubstr("but is image/gif"));
  EXPECT_THAT(base64_error("image/png", std::string(kMaxImageBytes / 3 * 4 + 8, 'A')),
              HasSubstr("20971520"));
}

TEST(ImageReader, BoundsPixelsAndNumber) {
  const auto png = [](const std::string& width, const std::string& height) {
    return base64("\x89PNG\r\n\x1a\n\0\0\0\rIHDR"s + width + height);
  };
  EXPECT_THAT(base64_error("image/png", png("\0\0\0\0"s, "\0\0\0\1"s)), HasSubstr("0 x 1 pixels"));
  EXPECT_THAT(base64_error("image/png", png("\0\0\x40\1"s, "\0\0\0\1"s)), HasSubstr("16385 x 1"));
  EXPECT_THAT(base64_error("image/png", png("\0\0\x40\0"s, "\0\0\x40\0"s)), HasSubstr("64000000"));
  ImageReader reader;
  for (std::size_t i = 0; i < kMaxImages; ++i) {
    EXPECT_TRUE(reader.read_url("https://host.example/", "x").ok());
  }
  EXPECT_EQ(error_details(reader.read_url("https://host.example/", "x").status()).code,
            "too_many_images");
}

TEST(Images, StandInTheirPlacesOfAChatAndNameTheirField) {
  const auto request =
      parse_chat_request(str_cat(R"({"model":"m","thinking":{"type":"disabled"},"messages":[
          {"role":"user","content":[{"type":"text","text":"<｜deepseek_image｜>"},
           {"type":"image_url","image_url":{"url":"data:image/gif;base64,)",
                                 base64(kGif), R"(","detail":"low"}},{"type":"text","text":"b"},
           {"type":"file","file":{"file_data":"x"}}]},
          {"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]},
          {"role":"tool","tool_call_id":"1","content":[{"type":"image_url",
           "image_url":{"url":"https://host.example/i"}}]}]})"),
                         "m", 100, Thinking::kOn);
  ASSERT_TRUE(request.ok()) << request.status();
  const Conversation& conversation = request->conversation;
  EXPECT_EQ(conversation.messages[0].parts[1], (Part{reference_of(kGif), Part::Kind::kImage}));
  EXPECT_EQ(conversation.messages[0].parts[3].text, "[Unsupported Document]");
  const auto prompt = render(conversation);
  ASSERT_TRUE(prompt.ok());
  int placeholders = 0;  // the spelling in the text is none
  for (const Segment& segment : prompt->segments) {
    placeholders += segment.is_control && segment.text == "<｜deepseek_image｜>" ? 1 : 0;
  }
  EXPECT_EQ(placeholders, 2);
  const absl::Status refused = refuse_images(conversation);
  EXPECT_EQ(error_details(refused).param, "messages[0].content[1].image_url.url");
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr("has no encoder"));
}

TEST(Images, OfMessagesComeAsBase64OrAddressAlsoInResults) {
  const auto request = parse_messages_request(
      str_cat(R"({"model":"m","max_tokens":1,"thinking":{"type":"disabled"},"messages":[
          {"role":"user","content":[{"type":"image","source":{"type":"url",
           "url":"https://host.example/i"}}]},
          {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[
           {"type":"image","source":{"type":"base64","media_type":"image/png","data":")",
              base64(kPng), R"("}}]}]}]})"),
      "m", Thinking::kOn, MaxTokens::kRequired);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->conversation.image_fields,
            (std::vector<std::string>{"messages[0].content[0].source.url",
                                      "messages[2].content[0].content[0].source.data"}));
  EXPECT_EQ(request->conversation.messages[2].parts[0].text, reference_of(kPng));
}

}  // namespace
}  // namespace millrace::api::recipe
