#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "api/tokenizer/prompt_part.h"

namespace millrace::api::tokenizer::test {

/// Appends a code point as UTF-8.
void append_code_point(std::uint32_t c, std::string& text);

/// Up to 40 code points: characters that the split patterns treat differently, side by side, and
/// some from anywhere in Unicode. No surrogates.
std::vector<std::uint32_t> random_code_points(std::mt19937& random);

std::string random_text(std::mt19937& random);

/// One to eight texts.
std::vector<std::string> random_texts(std::mt19937& random);

/// Those texts, with tokens between some of them. Views of the texts.
std::vector<PromptPart> parts_of(const std::vector<std::string>& texts, std::mt19937& random);

}  // namespace millrace::api::tokenizer::test
