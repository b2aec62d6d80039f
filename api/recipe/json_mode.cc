#include "api/recipe/json_mode.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace millrace::api::recipe {

bool mentions_json(const std::vector<Message>& messages) {
  constexpr std::string_view kWord = "json";
  const auto is_same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == b;
  };
  return std::any_of(messages.begin(), messages.end(), [&](const Message& message) {
    return std::any_of(message.parts.begin(), message.parts.end(), [&](const Part& part) {
      return std::search(part.text.begin(), part.text.end(), kWord.begin(), kWord.end(), is_same) !=
             part.text.end();
    });
  });
}

}  // namespace millrace::api::recipe
