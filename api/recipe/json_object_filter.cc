#include "api/recipe/json_object_filter.h"

namespace millrace::api::recipe {

void JsonObjectFilter::push(std::string& text) {
  for (char& byte : text) {
    switch (place_) {
      case Place::kBefore:
        if (byte == '{') {
          place_ = Place::kInside;
          depth_ = 1;
        } else {
          byte = ' ';
        }
        break;
      case Place::kInside:
        if (byte == '"') {
          place_ = Place::kInString;
        } else if (byte == '{' || byte == '[') {
          ++depth_;
        } else if ((byte == '}' || byte == ']') && --depth_ == 0) {
          place_ = Place::kAfter;
        }
        break;
      case Place::kInString:
        if (byte == '\\') place_ = Place::kBehindBackslash;
        if (byte == '"') place_ = Place::kInside;
        break;
      case Place::kBehindBackslash:
        place_ = Place::kInString;
        break;
      case Place::kAfter:
        byte = ' ';
        break;
    }
  }
}

}  // namespace millrace::api::recipe
