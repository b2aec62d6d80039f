#pragma once

#include <string>

namespace millrace::api::recipe {

/// For answers that are to be one JSON object: models like to put words or a code fence around it.
/// Every byte outside the first object becomes a space, so that the whole parses and every byte
/// keeps its place. Keeps no text; a chunk may end anywhere.
class JsonObjectFilter {
 public:
  /// Filters the next piece in place.
  void push(std::string& text);

 private:
  enum class Place { kBefore, kInside, kInString, kBehindBackslash, kAfter };
  Place place_ = Place::kBefore;
  int depth_ = 0;
};

}  // namespace millrace::api::recipe
