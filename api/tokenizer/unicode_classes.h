#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace millrace::api::tokenizer {

/// What a code point is to DeepSeek's split patterns, by Unicode 16.0, the version that the
/// reference library has. The value is the letter that stands for it in the generated table.
enum class CharClass : char {
  kWord = 'W',     ///< \p{L} and \p{M}
  kDigit = 'N',    ///< \p{N}
  kPunct = 'P',    ///< \p{P} and \p{S}
  kSpace = 'Z',    ///< White_Space, without the next two
  kNewline = 'R',  ///< CR and LF
  kOther = 'O',    ///< the rest: controls, formats, private use, unassigned
  // The three kinds of [一-龥぀-ゟ゠-ヿ]:
  kHan = 'C',       ///< \p{L} and \p{M}
  kHanPunct = 'D',  ///< \p{P} and \p{S}, for example ・
  kHanOther = 'E',  ///< unassigned
};

// The generated table: 128 code points a block, 0 to U+323FF.
extern const std::array<std::uint8_t, 1608> kClassBlocks;
extern const char kClassesOfBlocks[];

inline CharClass class_of(std::uint32_t code_point) {
  const std::size_t block = code_point >> 7;
  if (block < kClassBlocks.size()) [[likely]] {
    return static_cast<CharClass>(
        kClassesOfBlocks[std::size_t{kClassBlocks[block]} << 7 | (code_point & 127)]);
  }
  // Above are only the variation selectors of plane 14, which are marks.
  const bool is_selector = code_point >= 0xE0100 && code_point <= 0xE01EF;
  return is_selector ? CharClass::kWord : CharClass::kOther;
}

}  // namespace millrace::api::tokenizer
