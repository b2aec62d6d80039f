#include "api/recipe/json_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kLargestDouble = "1.7976931348623157e308";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// A double as Python's repr() prints it: the shortest digits that give the same double, with an
/// exponent below 1e-4 and from 1e16 on.
std::string python_float(double value) {
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end.ptr - buffer.data()));
  const std::size_t e = text.find('e');
  const bool is_negative = text.front() == '-';
  std::string digits;
  for (char c : text.substr(0, e)) {
    if (is_digit(c)) digits.push_back(c);
  }
  // to_chars writes "e+16", from_chars wants no plus.
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string out = is_negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out.append(".").append(digits, 1);
    out += exponent < 0 ? "e-" : "e+";
    const std::string power = std::to_string(std::abs(exponent));
    return out.append(power.size() < 2 ? "0" : "").append(power);
  }
  if (exponent < 0) {
    return out.append("0.").append(static_cast<std::size_t>(-exponent - 1), '0').append(digits);
  }
  const std::size_t whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    return out.append(digits).append(whole - digits.size(), '0').append(".0");
  }
  return out.append(digits, 0, whole).append(".").append(digits, whole);
}

std::string python_number(std::string_view text) {
  if (text.find_first_of(".eE") == std::string_view::npos) {
    return text == "-0" ? "0" : std::string(text);
  }
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) return std::string(text);
  return python_float(value);
}

void append_utf8(std::uint32_t code, std::string& out) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

/// Recursive descent over a JSON text. Functions return false at the first violation, at().
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::size_t at() const { return at_; }

  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  /// Any value; its Python form is appended to `out` unless that is null.
  bool value(std::string* out) {
    skip_space();
    if (at_ >= text_.size()) return false;
    const char c = text_[at_];
    if (c == '{') return nested(out, &Reader::object);
    if (c == '[') return nested(out, &Reader::list);
    if (c == '"') {
      std::string text;
      if (!string(out != nullptr ? &text : nullptr)) return false;
      if (out != nullptr) out->append(quoted(text));
      return true;
    }
    if (c == '-' || is_digit(c)) return number(out);
    return literal("true", out) || literal("false", out) || literal("null", out);
  }

  /// A string; the text that it stands for is appended to `out` unless that is null.
  bool string(std::string* out) {
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '\\') {
        if (!escape(out)) return false;
      } else {
        if (out != nullptr) out->push_back(c);
        ++at_;
      }
    }
    return false;
  }

  /// Calls `member(name)` in front of every value of an object; it must read the value.
  template <typename Member>
  bool for_members(Member member) {
    skip_space();
    if (!take('{')) return false;
    skip_space();
    if (take('}')) return true;
    while (true) {
      std::string name;
      skip_space();
      if (!string(&name)) return false;
      skip_space();
      if (!take(':')) return false;
      skip_space();
      if (!member(std::move(name))) return false;
      skip_space();
      if (take('}')) return true;
      if (!take(',')) return false;
    }
  }

  /// Calls `element()` in front of every value of a list; it must read the value.
  template <typename Element>
  bool for_elements(Element element) {
    skip_space();
    if (!take('[')) return false;
    skip_space();
    if (take(']')) return true;
    while (true) {
      skip_space();
      if (!element()) return false;
      skip_space();
      if (take(']')) return true;
      if (!take(',')) return false;
    }
  }

 private:
  bool nested(std::string* out, bool (Reader::*read)(std::string*)) {
    if (depth_ >= kMaxDepth) return false;
    ++depth_;
    const bool is_valid = (this->*read)(out);
    --depth_;
    return is_valid;
  }

  bool object(std::string* out) {
    if (out == nullptr) {
      return for_members([this](const std::string&) { return value(nullptr); });
    }
    std::vector<std::pair<std::string, std::string>> members;
    std::unordered_map<std::string, std::size_t> places;
    const bool is_valid = for_members([&](std::string name) {
      std::string text;
      if (!value(&text)) return false;
      const auto [place, is_new] = places.emplace(name, members.size());
      if (is_new) {
        members.emplace_back(std::move(name), std::move(text));
      } else {
        members[place->second].second = std::move(text);
      }
      return true;
    });
    if (!is_valid) return false;
    out->push_back('{');
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i > 0) out->append(", ");
      out->append(quoted(members[i].first)).append(": ").append(members[i].second);
    }
    out->push_back('}');
    return true;
  }

  bool list(std::string* out) {
    if (out == nullptr) {
      return for_elements([this] { return value(nullptr); });
    }
    out->push_back('[');
    bool is_first = true;
    const bool is_valid = for_elements([&] {
      if (!std::exchange(is_first, false)) out->append(", ");
      return value(out);
    });
    out->push_back(']');
    return is_valid;
  }

  bool literal(std::string_view word, std::string* out) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    if (out != nullptr) out->append(word);
    return true;
  }

  bool digits() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ > begin;
  }

  bool number(std::string* out) {
    const std::size_t begin = at_;
    take('-');
    if (!take('0') && !digits()) return false;
    if (at_ < text_.size() && is_digit(text_[at_])) return false;  // a leading zero
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) return false;
    }
    if (out != nullptr) out->append(python_number(text_.substr(begin, at_ - begin)));
    return true;
  }

  bool escape(std::string* out) {
    ++at_;
    if (at_ >= text_.size()) return false;
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const char c = text_[at_++];
    if (const std::size_t place = kNames.find(c); place != std::string_view::npos) {
      if (out != nullptr) out->push_back(kValues[place]);
      return true;
    }
    std::uint32_t code = 0;
    if (c != 'u' || !hex4(code)) return false;
    if (code >= 0xD800 && code < 0xDC00) {
      std::uint32_t low = 0;
      if (!take('\\') || !take('u') || !hex4(low) || low < 0xDC00 || low > 0xDFFF) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      return false;
    }
    if (out != nullptr) append_utf8(code, *out);
    return true;
  }

  bool hex4(std::uint32_t& code) {
    if (at_ + 4 > text_.size()) return false;
    const char* begin = text_.data() + at_;
    const auto result = std::from_chars(begin, begin + 4, code, 16);
    if (result.ec != std::errc() || result.ptr != begin + 4) return false;
    at_ += 4;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

/// Whether a text is a number, and too large for a double. What merely begins like one is not: to
/// replace it would make JSON of what is none.
bool overflows(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc::result_out_of_range) return false;
  Reader reader(text);
  if (!reader.value(nullptr) || !reader.at_end()) return false;
  // Both ends of the range are reported alike; strtod tells them apart.
  return std::isinf(std::strtod(std::string(text).c_str(), nullptr));
}

absl::Status invalid(const Reader& reader, std::string_view what) {
  return absl::InvalidArgumentError(str_cat("not ", what, " at byte ", reader.at()));
}

}  // namespace

absl::StatusOr<std::string> python_json(std::string_view json) {
  Reader reader(json);
  std::string out;
  if (!reader.value(&out) || !reader.at_end()) return invalid(reader, "JSON");
  return out;
}

absl::StatusOr<std::vector<RawMember>> raw_members(std::string_view json) {
  Reader reader(json);
  std::vector<RawMember> members;
  const bool is_valid = reader.for_members([&](std::string name) {
    const std::size_t begin = reader.at();
    if (!reader.value(nullptr)) return false;
    members.push_back({std::move(name), json.substr(begin, reader.at() - begin)});
    return true;
  });
  if (!is_valid || !reader.at_end()) return invalid(reader, "a JSON object");
  return members;
}

std::string_view raw_member(std::string_view json, std::string_view name) {
  // The parser of bodies skips a byte order mark, too.
  if (json.starts_with(kByteOrderMark)) json.remove_prefix(kByteOrderMark.size());
  Reader reader(json);
  std::string_view found;
  const bool is_valid = reader.for_members([&](const std::string& member) {
    const std::size_t begin = reader.at();
    if (!reader.value(nullptr)) return false;
    if (member == name) found = json.substr(begin, reader.at() - begin);
    return true;
  });
  return is_valid ? found : std::string_view();
}

absl::StatusOr<std::vector<std::string_view>> raw_elements(std::string_view json) {
  Reader reader(json);
  std::vector<std::string_view> elements;
  const bool is_valid = reader.for_elements([&] {
    const std::size_t begin = reader.at();
    if (!reader.value(nullptr)) return false;
    elements.push_back(json.substr(begin, reader.at() - begin));
    return true;
  });
  if (!is_valid || !reader.at_end()) return invalid(reader, "a JSON list");
  return elements;
}

std::optional<std::string> string_value(std::string_view json) {
  Reader reader(json);
  std::string text;
  reader.skip_space();
  if (!reader.string(&text) || !reader.at_end()) return std::nullopt;
  return text;
}

void append_escaped(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::size_t begin = 0;  // of the run that needs no escape
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text, begin, i - begin);
    begin = i + 1;
    switch (byte) {
      case '"':
      case '\\':
        out.push_back('\\');
        out.push_back(text[i]);
        break;
      case '\b':
        out.append("\\b");
        break;
      case '\f':
        out.append("\\f");
        break;
      case '\n':
        out.append("\\n");
        break;
      case '\r':
        out.append("\\r");
        break;
      case '\t':
        out.append("\\t");
        break;
      default:
        out.append("\\u00");
        out.push_back(kHex[byte >> 4]);
        out.push_back(kHex[byte & 15]);
    }
  }
  out.append(text, begin);
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  append_escaped(text, out);
  out.push_back('"');
  return out;
}

std::optional<std::string> clamp_numbers(std::string_view json) {
  std::string out;
  std::size_t copied = 0;
  for (std::size_t i = 0; i < json.size();) {
    const char c = json[i];
    if (c == '"') {
      for (++i; i < json.size() && json[i] != '"'; ++i) {
        if (json[i] == '\\') ++i;
      }
      ++i;
    } else if (is_digit(c)) {
      const std::size_t begin = i;
      while (i < json.size() && (is_digit(json[i]) || std::string_view(".eE+-").find(json[i]) !=
                                                          std::string_view::npos)) {
        ++i;
      }
      if (overflows(json.substr(begin, i - begin))) {
        out.append(json, copied, begin - copied).append(kLargestDouble);
        copied = i;
      }
    } else {
      ++i;
    }
  }
  if (copied == 0) return std::nullopt;
  out.append(json, copied);
  return out;
}

}  // namespace millrace::api::recipe
