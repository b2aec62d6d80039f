#include "api/tokenizer/tokenizer_file.h"

#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::tokenizer {
namespace {

// Not the project's ordered Json: its objects search linearly on insertion, and a vocabulary is one
// object of 128,000 keys.
using FileJson = nlohmann::json;
using VocabIndex = std::unordered_map<std::string, TokenId>;

constexpr TokenId kMaxTokenId = 1 << 22;

absl::Status invalid(std::string_view what) {
  return absl::InvalidArgumentError(str_cat("tokenizer.json: ", what));
}

/// The value of a key, or a null value.
const FileJson& at(const FileJson& object, const char* key) {
  static const FileJson null_value;
  if (!object.is_object()) return null_value;
  const auto it = object.find(key);
  return it == object.end() ? null_value : *it;
}

std::string show(const FileJson& value) {
  std::string text = value.dump(-1, ' ', false, FileJson::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

/// The setting must be absent, null, or one of the two values given.
absl::Status require(const FileJson& object, const char* where, const char* key,
                     const FileJson& allowed) {
  const FileJson& value = at(object, key);
  if (value.is_null() || value == allowed) return absl::OkStatus();
  return invalid(str_cat(where, ".", key, " = ", show(value), " is not supported (only ",
                         show(allowed), " is)"));
}

absl::Status check_normalizer(const FileJson& root) {
  const FileJson& normalizer = at(root, "normalizer");
  if (normalizer.is_null()) return absl::OkStatus();
  if (at(normalizer, "type") == "Sequence" && at(normalizer, "normalizers").empty()) {
    return absl::OkStatus();
  }
  return invalid(str_cat("normalizer ", show(normalizer),
                         " is not supported (only null or an empty Sequence is)"));
}

std::string escape_literal(const std::string& text) {
  // Inside \Q..\E everything is literal except \E itself.
  std::string out = "\\Q";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "\\E") == 0) {
      out += "\\E\\\\E\\Q";
      ++i;
    } else {
      out.push_back(text[i]);
    }
  }
  return out + "\\E";
}

absl::StatusOr<std::string> read_split(const FileJson& step, const std::string& where) {
  RETURN_IF_ERROR(require(step, where.c_str(), "behavior", "Isolated"));
  RETURN_IF_ERROR(require(step, where.c_str(), "invert", false));
  const FileJson& pattern = at(step, "pattern");
  const FileJson& regex = at(pattern, "Regex");
  const FileJson& literal = at(pattern, "String");
  if (regex.is_string()) return regex.get<std::string>();
  if (literal.is_string()) return escape_literal(literal.get<std::string>());
  return invalid(str_cat(where, ".pattern must be {\"Regex\": text} or {\"String\": text}"));
}

absl::Status check_byte_level(const FileJson& step, const std::string& where) {
  const FileJson& prefix = at(step, "add_prefix_space");
  // Both settings default to true in the format, so an absent one is refused as well.
  if (prefix != false) {
    return invalid(str_cat(where, ".add_prefix_space must be false, is ", show(prefix)));
  }
  if (at(step, "use_regex") != false) {
    return invalid(str_cat(where, ".use_regex must be false, is ", show(at(step, "use_regex"))));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> read_pre_tokenizer(const FileJson& root) {
  const FileJson& pre = at(root, "pre_tokenizer");
  FileJson steps = FileJson::array();
  if (at(pre, "type") == "Sequence") {
    steps = at(pre, "pretokenizers");
  } else if (!pre.is_null()) {
    steps.push_back(pre);
  }
  if (!steps.is_array() || steps.empty()) {
    return invalid("pre_tokenizer must be a Sequence of Split steps and a final ByteLevel");
  }
  std::vector<std::string> patterns;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const FileJson& step = steps[i];
    const std::string where = str_cat("pre_tokenizer.pretokenizers[", i, "]");
    const FileJson& type = at(step, "type");
    const bool is_last = i + 1 == steps.size();
    if (type == "Split" && !is_last) {
      ASSIGN_OR_RETURN(std::string pattern, read_split(step, where));
      patterns.push_back(std::move(pattern));
    } else if (type == "ByteLevel" && is_last) {
      RETURN_IF_ERROR(check_byte_level(step, where));
    } else {
      return invalid(str_cat(where, ".type = ", show(type),
                             is_last ? ": the last step must be ByteLevel"
                                     : " is not supported (only Split is, before ByteLevel)"));
    }
  }
  return patterns;
}

/// Code point -> byte of the printable byte alphabet that byte-level files spell tokens in
/// (GPT-2's table: printable Latin-1 stands for itself, the rest is moved to U+0100 and up).
std::array<int, 512> byte_alphabet() {
  std::array<int, 512> byte_of{};
  byte_of.fill(-1);
  int spare = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                              (byte >= 0xAE && byte <= 0xFF);
    const int code_point = is_printable ? byte : 256 + spare++;
    byte_of[static_cast<std::size_t>(code_point)] = byte;
  }
  return byte_of;
}

/// Bytes of a token spelled in that alphabet; nullopt when a character is not of it.
std::optional<std::string> to_bytes(const std::string& spelling) {
  static const std::array<int, 512> kByteOf = byte_alphabet();
  std::string bytes;
  for (std::size_t i = 0; i < spelling.size();) {
    const auto lead = static_cast<unsigned char>(spelling[i]);
    unsigned code_point = lead;
    if (lead >= 0x80) {
      if ((lead & 0xE0) != 0xC0 || i + 1 >= spelling.size()) return std::nullopt;
      code_point = (lead & 0x1Fu) << 6 | (static_cast<unsigned char>(spelling[i + 1]) & 0x3Fu);
      ++i;
    }
    ++i;
    if (code_point >= kByteOf.size() || kByteOf[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOf[code_point]));
  }
  return bytes;
}

absl::Status read_vocabulary(const FileJson& model, TokenizerFile& file, VocabIndex& index) {
  const FileJson& vocab = at(model, "vocab");
  if (!vocab.is_object() || vocab.empty()) return invalid("model.vocab must be a non-empty object");
  index.reserve(vocab.size());
  for (const auto& [spelling, id_value] : vocab.items()) {
    if (!id_value.is_number_integer() || id_value < 0 || id_value >= kMaxTokenId) {
      return invalid(
          str_cat("model.vocab[", show(spelling), "] = ", show(id_value), " is not a token id"));
    }
    const TokenId id = id_value.get<TokenId>();
    const auto slot = static_cast<std::size_t>(id);
    if (slot >= file.token_bytes.size()) file.token_bytes.resize(slot + 1);
    index.emplace(spelling, id);
    // A spelling outside the byte alphabet can only be an added token that the vocabulary repeats;
    // no merge can reach it (read_merges checks), so only its text matters, for decoding.
    std::optional<std::string> bytes = to_bytes(spelling);
    if (!file.token_bytes[slot].empty()) {
      return invalid(str_cat("model.vocab: id ", id, " is given twice"));
    }
    file.token_bytes[slot] = std::move(bytes).value_or(spelling);
  }
  return absl::OkStatus();
}

absl::Status find_byte_tokens(const VocabIndex& index, TokenizerFile& file) {
  file.byte_tokens.fill(-1);
  for (const auto& [spelling, id] : index) {
    const std::optional<std::string> bytes = to_bytes(spelling);
    if (bytes && bytes->size() == 1) {
      file.byte_tokens[static_cast<unsigned char>((*bytes)[0])] = id;
    }
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (file.byte_tokens[byte] < 0) {
      return invalid(str_cat("model.vocab has no token for byte ", byte));
    }
  }
  return absl::OkStatus();
}

/// A merge is written "left right" or ["left", "right"].
std::optional<std::pair<std::string, std::string>> read_pair(const FileJson& value) {
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return std::pair(value[0].get<std::string>(), value[1].get<std::string>());
  }
  if (!value.is_string()) return std::nullopt;
  const std::string text = value.get<std::string>();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == text.size()) return std::nullopt;
  if (text.find(' ', space + 1) != std::string::npos) return std::nullopt;
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

absl::Status read_merges(const FileJson& model, const VocabIndex& index, TokenizerFile& file) {
  const FileJson& merges = at(model, "merges");
  if (!merges.is_array()) return invalid("model.merges must be a list");
  file.merges.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto pair = read_pair(merges[rank]);
    if (!pair) {
      return invalid(
          str_cat("model.merges[", rank, "] = ", show(merges[rank]), " is not a pair of tokens"));
    }
    Merge merge;
    const std::pair<std::string, TokenId*> parts[] = {{pair->first, &merge.left},
                                                      {pair->second, &merge.right},
                                                      {pair->first + pair->second, &merge.result}};
    for (const auto& [spelling, id] : parts) {
      const auto it = index.find(spelling);
      if (it == index.end() || !to_bytes(spelling)) {
        return invalid(str_cat("model.merges[", rank, "]: ", show(spelling),
                               " is not a byte-level token of model.vocab"));
      }
      *id = it->second;
    }
    file.merges.push_back(merge);
  }
  return absl::OkStatus();
}

absl::Status read_model(const FileJson& root, TokenizerFile& file) {
  const FileJson& model = at(root, "model");
  if (at(model, "type") != "BPE") {
    return invalid(
        str_cat("model.type = ", show(at(model, "type")), " is not supported (only \"BPE\" is)"));
  }
  RETURN_IF_ERROR(require(model, "model", "dropout", nullptr));
  RETURN_IF_ERROR(require(model, "model", "unk_token", nullptr));
  RETURN_IF_ERROR(require(model, "model", "continuing_subword_prefix", ""));
  RETURN_IF_ERROR(require(model, "model", "end_of_word_suffix", ""));
  RETURN_IF_ERROR(require(model, "model", "fuse_unk", false));
  RETURN_IF_ERROR(require(model, "model", "byte_fallback", false));
  RETURN_IF_ERROR(require(model, "model", "ignore_merges", false));
  VocabIndex index;
  RETURN_IF_ERROR(read_vocabulary(model, file, index));
  RETURN_IF_ERROR(find_byte_tokens(index, file));
  return read_merges(model, index, file);
}

absl::StatusOr<AddedToken> read_added_token(const FileJson& value, const std::string& where) {
  const FileJson& id = at(value, "id");
  const FileJson& content = at(value, "content");
  if (!id.is_number_integer() || id < 0 || id >= kMaxTokenId) {
    return invalid(str_cat(where, ".id = ", show(id), " is not a token id"));
  }
  if (!content.is_string() || content.get_ref<const std::string&>().empty()) {
    return invalid(str_cat(where, ".content must be a non-empty string"));
  }
  for (const char* key : {"lstrip", "rstrip", "single_word"}) {
    RETURN_IF_ERROR(require(value, where.c_str(), key, false));
  }
  return AddedToken{.id = id.get<TokenId>(),
                    .content = content.get<std::string>(),
                    .special = at(value, "special") == true,
                    .normalized = at(value, "normalized") == true};
}

absl::Status read_added_tokens(const FileJson& root, TokenizerFile& file) {
  const FileJson& added = at(root, "added_tokens");
  if (added.is_null()) return absl::OkStatus();
  if (!added.is_array()) return invalid("added_tokens must be a list");
  std::unordered_map<std::string, TokenId> seen;
  for (std::size_t i = 0; i < added.size(); ++i) {
    const std::string where = str_cat("added_tokens[", i, "]");
    ASSIGN_OR_RETURN(AddedToken token, read_added_token(added[i], where));
    if (!seen.emplace(token.content, token.id).second) {
      return invalid(str_cat(where, ": ", show(token.content), " is given twice"));
    }
    const auto slot = static_cast<std::size_t>(token.id);
    if (slot >= file.token_bytes.size()) file.token_bytes.resize(slot + 1);
    std::string& bytes = file.token_bytes[slot];
    if (!bytes.empty() && bytes != token.content) {
      return invalid(str_cat(where, ": id ", token.id, " already stands for ", show(bytes)));
    }
    bytes = token.content;
    file.added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizerFile> read_root(const FileJson& root) {
  if (!root.is_object()) return invalid("must be a JSON object");
  TokenizerFile file;
  RETURN_IF_ERROR(check_normalizer(root));
  ASSIGN_OR_RETURN(file.split_patterns, read_pre_tokenizer(root));
  RETURN_IF_ERROR(read_model(root, file));
  RETURN_IF_ERROR(read_added_tokens(root, file));
  return file;
}

}  // namespace

absl::StatusOr<TokenizerFile> parse_tokenizer_file(std::string_view json) {
  // The library throws on bad syntax and on values that do not fit the type asked for.
  try {
    return read_root(FileJson::parse(json));
  } catch (const FileJson::exception& error) {
    return invalid(error.what());
  }
}

}  // namespace millrace::api::tokenizer
