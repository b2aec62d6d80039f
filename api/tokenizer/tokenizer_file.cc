#include "api/tokenizer/tokenizer_file.h"

#include <simdjson.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::tokenizer {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;
/// A value that is there and not null.
using Value = std::optional<element>;

constexpr TokenId kMaxTokenId = 1 << 22;
constexpr std::size_t kMaxFileBytes = 1u << 30;

absl::Status invalid(std::string_view what) {
  return absl::InvalidArgumentError(str_cat("tokenizer.json: ", what));
}

Value at(const Value& parent, std::string_view key) {
  object members;
  if (!parent || parent->get_object().get(members) != simdjson::SUCCESS) return {};
  element found;
  if (members.at_key(key).get(found) != simdjson::SUCCESS || found.is_null()) return {};
  return found;
}

std::optional<std::string_view> text_of(const Value& value) {
  std::string_view text;
  if (!value || value->get_string().get(text) != simdjson::SUCCESS) return {};
  return text;
}

std::optional<bool> flag_of(const Value& value) {
  bool flag = false;
  if (!value || value->get_bool().get(flag) != simdjson::SUCCESS) return {};
  return flag;
}

std::optional<TokenId> token_id_of(const Value& value) {
  std::int64_t id = 0;
  if (!value || value->get_int64().get(id) != simdjson::SUCCESS) return {};
  if (id < 0 || id >= kMaxTokenId) return {};
  return static_cast<TokenId>(id);
}

/// The elements of a list, or nothing.
std::optional<simdjson::dom::array> list_of(const Value& value) {
  simdjson::dom::array list;
  if (!value || value->get_array().get(list) != simdjson::SUCCESS) return {};
  return list;
}

std::string shortened(std::string text) {
  if (text.size() <= 80) return text;
  std::size_t end = 77;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

/// A value as JSON, for a message.
std::string show(const Value& value) {
  return shortened(value ? simdjson::to_string(*value) : "null");
}

/// A text in quotes, for a message.
std::string show_text(std::string_view text) {
  return shortened(str_cat("\"", absl::Utf8SafeCEscape(to_absl(text)), "\""));
}

absl::Status unsupported(std::string_view where, std::string_view key, const Value& value,
                         std::string_view allowed) {
  return invalid(
      str_cat(where, ".", key, " = ", show(value), " is not supported (only ", allowed, " is)"));
}

/// The setting must be absent, null or false.
absl::Status require_off(const Value& parent, std::string_view where, std::string_view key) {
  const Value value = at(parent, key);
  if (!value || flag_of(value) == false) return absl::OkStatus();
  return unsupported(where, key, value, "false");
}

/// The setting must be absent or null.
absl::Status require_absent(const Value& parent, std::string_view where, std::string_view key) {
  const Value value = at(parent, key);
  return value ? unsupported(where, key, value, "null") : absl::OkStatus();
}

/// The setting must be absent, null or this text.
absl::Status require_text(const Value& parent, std::string_view where, std::string_view key,
                          std::string_view text) {
  const Value value = at(parent, key);
  if (!value || text_of(value) == text) return absl::OkStatus();
  return unsupported(where, key, value, str_cat("\"", text, "\""));
}

/// No object inside of a value has a key twice: of two settings either could be meant.
absl::Status check_keys(const Value& value, const std::string& where) {
  if (const auto list = list_of(value)) {
    std::size_t index = 0;
    for (const element item : *list) {
      RETURN_IF_ERROR(check_keys(item, str_cat(where, "[", index++, "]")));
    }
  }
  object members;
  if (!value || value->get_object().get(members) != simdjson::SUCCESS) return absl::OkStatus();
  std::vector<std::string_view> keys;
  for (const auto& [key, member] : members) {
    keys.push_back(key);
    // Those two are large, and reading them finds what they have twice.
    if (where == "model" && (key == "vocab" || key == "merges")) continue;
    RETURN_IF_ERROR(
        check_keys(member, where.empty() ? std::string(key) : str_cat(where, ".", key)));
  }
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return absl::OkStatus();
  return invalid(
      str_cat(where, where.empty() ? "" : ": ", "the key \"", *twice, "\" is given twice"));
}

absl::Status check_normalizer(const Value& root) {
  const Value normalizer = at(root, "normalizer");
  if (!normalizer) return absl::OkStatus();
  const Value steps = at(normalizer, "normalizers");
  const auto list = list_of(steps);
  if (text_of(at(normalizer, "type")) == "Sequence" && (!steps || (list && list->size() == 0))) {
    return absl::OkStatus();
  }
  return invalid(str_cat("normalizer ", show(normalizer),
                         " is not supported (only null or an empty Sequence is)"));
}

std::string escape_literal(std::string_view text) {
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

absl::StatusOr<std::string> read_split(const Value& step, const std::string& where) {
  RETURN_IF_ERROR(require_text(step, where, "behavior", "Isolated"));
  RETURN_IF_ERROR(require_off(step, where, "invert"));
  const Value pattern = at(step, "pattern");
  if (const auto regex = text_of(at(pattern, "Regex"))) return std::string(*regex);
  if (const auto literal = text_of(at(pattern, "String"))) return escape_literal(*literal);
  return invalid(str_cat(where, ".pattern must be {\"Regex\": text} or {\"String\": text}"));
}

absl::Status check_byte_level(const Value& step, const std::string& where) {
  // Both settings default to true in the format, so an absent one is refused as well.
  for (const std::string_view key : {"add_prefix_space", "use_regex"}) {
    const Value value = at(step, key);
    if (flag_of(value) == false) continue;
    return invalid(str_cat(where, ".", key, " must be false, is ", show(value)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> read_pre_tokenizer(const Value& root) {
  const Value pre = at(root, "pre_tokenizer");
  std::vector<element> steps;
  if (text_of(at(pre, "type")) == "Sequence") {
    if (const auto list = list_of(at(pre, "pretokenizers")))
      steps.assign(list->begin(), list->end());
  } else if (pre) {
    steps.push_back(*pre);
  }
  if (steps.empty()) {
    return invalid("pre_tokenizer must be a Sequence of Split steps and a final ByteLevel");
  }
  std::vector<std::string> patterns;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Value step = steps[i];
    const std::string where = str_cat("pre_tokenizer.pretokenizers[", i, "]");
    const Value type = at(step, "type");
    const bool is_last = i + 1 == steps.size();
    if (text_of(type) == "Split" && !is_last) {
      ASSIGN_OR_RETURN(std::string pattern, read_split(step, where));
      patterns.push_back(std::move(pattern));
    } else if (text_of(type) == "ByteLevel" && is_last) {
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

/// Appends the bytes of a token spelled in that alphabet; false when a character is not of it.
bool append_bytes(std::string_view spelling, std::string& bytes) {
  static const std::array<int, 512> kByteOf = byte_alphabet();
  for (std::size_t i = 0; i < spelling.size();) {
    const auto lead = static_cast<unsigned char>(spelling[i]);
    unsigned code_point = lead;
    if (lead >= 0x80) {
      if ((lead & 0xE0) != 0xC0 || i + 1 >= spelling.size()) return false;
      code_point = (lead & 0x1Fu) << 6 | (static_cast<unsigned char>(spelling[i + 1]) & 0x3Fu);
      ++i;
    }
    ++i;
    if (code_point >= kByteOf.size() || kByteOf[code_point] < 0) return false;
    bytes.push_back(static_cast<char>(kByteOf[code_point]));
  }
  return true;
}

/// How many bytes a token of that alphabet stands for: one for each character.
std::size_t byte_count(std::string_view spelling) {
  return static_cast<std::size_t>(std::count_if(spelling.begin(), spelling.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

absl::Status read_vocabulary(const Value& model, TokenizerFile& file) {
  object vocab;
  const Value value = at(model, "vocab");
  if (!value || value->get_object().get(vocab) != simdjson::SUCCESS || vocab.size() == 0) {
    return invalid("model.vocab must be a non-empty object");
  }
  std::size_t spelled_bytes = 0;
  TokenIndex::Counts counts;
  for (const auto& [spelling, id] : vocab) {
    spelled_bytes += spelling.size();
    const std::size_t length = byte_count(spelling);
    ++(length <= 8 ? counts.up_to_8 : counts.up_to_16);
  }
  file.token_bytes.reserve(vocab.size(), spelled_bytes);
  file.byte_level_tokens = TokenIndex(counts);
  std::string bytes;
  for (const auto& [spelling, id_value] : vocab) {
    const std::optional<TokenId> id = token_id_of(id_value);
    if (!id || spelling.empty()) {
      return invalid(str_cat("model.vocab[", show_text(spelling), "] = ", show(id_value),
                             " is not a token id"));
    }
    if (!file.token_bytes.of(*id).empty()) {
      return invalid(str_cat("model.vocab: id ", *id, " is given twice"));
    }
    bytes.clear();
    // A spelling outside the byte alphabet can only be an added token that the vocabulary repeats;
    // no merge can reach it (read_merges checks), so only its text matters, for decoding.
    const bool is_byte_level = append_bytes(spelling, bytes);
    file.token_bytes.set(*id, is_byte_level ? bytes : spelling);
    if (is_byte_level && !file.byte_level_tokens.add(bytes, *id)) {
      return invalid(str_cat("model.vocab[", show_text(spelling), "] is given twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status find_byte_tokens(TokenizerFile& file) {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    file.byte_tokens[byte] = file.byte_level_tokens.find({&c, 1}, 1);
    if (file.byte_tokens[byte] < 0) {
      return invalid(str_cat("model.vocab has no token for byte ", byte));
    }
  }
  return absl::OkStatus();
}

/// A merge is written "left right" or ["left", "right"].
std::optional<std::pair<std::string_view, std::string_view>> read_pair(const Value& value) {
  if (const auto list = list_of(value)) {
    if (list->size() != 2) return {};
    const auto left = text_of(list->at(0).value_unsafe());
    const auto right = text_of(list->at(1).value_unsafe());
    if (!left || !right) return {};
    return std::pair(*left, *right);
  }
  const std::optional<std::string_view> text = text_of(value);
  if (!text) return {};
  const std::size_t space = text->find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == text->size()) return {};
  if (text->find(' ', space + 1) != std::string_view::npos) return {};
  return std::pair(text->substr(0, space), text->substr(space + 1));
}

/// Merges that are looked up together. That is three tokens each, from all over the table, and
/// would be half of reading a file if the cache were not told before.
class MergeBatch {
 public:
  static constexpr std::size_t kSize = 32;

  explicit MergeBatch(const TokenIndex& index) : index_(index) {}

  std::size_t size() const { return merges_.size(); }

  void add(std::string_view left, std::string_view right) {
    Spelled& merge = merges_.emplace_back(Spelled{.left = left, .right = right});
    merge.begin = bytes_.size();
    merge.left_is_byte_level = append_bytes(left, bytes_);
    merge.border = bytes_.size();
    merge.right_is_byte_level = append_bytes(right, bytes_);
    merge.end = bytes_.size();
  }

  /// Appends the ids and empties the batch.
  absl::Status find(HugeVector<Merge>& found) {
    bytes_.append(TokenIndex::kShortBytes, '\0');  // so that every lookup may read as many
    for (const Spelled& merge : merges_) {
      index_.prefetch(part(merge.begin, merge.border), TokenIndex::kShortBytes);
      index_.prefetch(part(merge.border, merge.end), TokenIndex::kShortBytes);
      index_.prefetch(part(merge.begin, merge.end), TokenIndex::kShortBytes);
    }
    for (const Spelled& spelled : merges_) {
      const Merge merge{
          .left = spelled.left_is_byte_level ? id_of(spelled.begin, spelled.border) : -1,
          .right = spelled.right_is_byte_level ? id_of(spelled.border, spelled.end) : -1,
          .result = id_of(spelled.begin, spelled.end)};
      if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
        const std::string wrong = merge.left < 0    ? std::string(spelled.left)
                                  : merge.right < 0 ? std::string(spelled.right)
                                                    : str_cat(spelled.left, spelled.right);
        return invalid(str_cat("model.merges[", found.size(), "]: ", show_text(wrong),
                               " is not a byte-level token of model.vocab"));
      }
      found.push_back(merge);
    }
    merges_.clear();
    bytes_.clear();
    return absl::OkStatus();
  }

 private:
  /// A merge as the file spells it, and where in bytes_ the bytes of its parts are.
  struct Spelled {
    std::string_view left;
    std::string_view right;
    std::size_t begin = 0;
    std::size_t border = 0;
    std::size_t end = 0;
    bool left_is_byte_level = false;
    bool right_is_byte_level = false;
  };

  std::string_view part(std::size_t begin, std::size_t end) const {
    return std::string_view(bytes_).substr(begin, end - begin);
  }
  TokenId id_of(std::size_t begin, std::size_t end) const {
    return index_.find(part(begin, end), TokenIndex::kShortBytes);
  }

  const TokenIndex& index_;
  std::vector<Spelled> merges_;
  std::string bytes_;
};

absl::Status read_merges(const Value& model, TokenizerFile& file) {
  const auto merges = list_of(at(model, "merges"));
  if (!merges) return invalid("model.merges must be a list");
  file.merges.reserve(merges->size());
  MergeBatch batch(file.byte_level_tokens);
  for (const element value : *merges) {
    const auto pair = read_pair(value);
    if (!pair) {
      return invalid(str_cat("model.merges[", file.merges.size() + batch.size(),
                             "] = ", show(Value(value)), " is not a pair of tokens"));
    }
    batch.add(pair->first, pair->second);
    if (batch.size() == MergeBatch::kSize) RETURN_IF_ERROR(batch.find(file.merges));
  }
  return batch.find(file.merges);
}

absl::Status read_model(const Value& root, TokenizerFile& file) {
  const Value model = at(root, "model");
  const Value type = at(model, "type");
  if (text_of(type) != "BPE") {
    return invalid(str_cat("model.type = ", show(type), " is not supported (only \"BPE\" is)"));
  }
  RETURN_IF_ERROR(require_absent(model, "model", "dropout"));
  RETURN_IF_ERROR(require_absent(model, "model", "unk_token"));
  RETURN_IF_ERROR(require_text(model, "model", "continuing_subword_prefix", ""));
  RETURN_IF_ERROR(require_text(model, "model", "end_of_word_suffix", ""));
  RETURN_IF_ERROR(require_off(model, "model", "fuse_unk"));
  RETURN_IF_ERROR(require_off(model, "model", "byte_fallback"));
  RETURN_IF_ERROR(require_off(model, "model", "ignore_merges"));
  RETURN_IF_ERROR(read_vocabulary(model, file));
  RETURN_IF_ERROR(find_byte_tokens(file));
  return read_merges(model, file);
}

absl::StatusOr<AddedToken> read_added_token(const Value& value, const std::string& where) {
  const std::optional<TokenId> id = token_id_of(at(value, "id"));
  const std::optional<std::string_view> content = text_of(at(value, "content"));
  if (!id) return invalid(str_cat(where, ".id = ", show(at(value, "id")), " is not a token id"));
  if (!content || content->empty()) {
    return invalid(str_cat(where, ".content must be a non-empty string"));
  }
  for (const char* key : {"lstrip", "rstrip", "single_word"}) {
    RETURN_IF_ERROR(require_off(value, where, key));
  }
  return AddedToken{.id = *id,
                    .content = std::string(*content),
                    .special = flag_of(at(value, "special")) == true,
                    .normalized = flag_of(at(value, "normalized")) == true};
}

absl::Status read_added_tokens(const Value& root, TokenizerFile& file) {
  const Value added = at(root, "added_tokens");
  if (!added) return absl::OkStatus();
  const auto list = list_of(added);
  if (!list) return invalid("added_tokens must be a list");
  absl::flat_hash_set<std::string> seen;
  for (const element value : *list) {
    const std::string where = str_cat("added_tokens[", file.added_tokens.size(), "]");
    ASSIGN_OR_RETURN(AddedToken token, read_added_token(value, where));
    if (!seen.insert(token.content).second) {
      return invalid(str_cat(where, ": ", show_text(token.content), " is given twice"));
    }
    const std::string_view bytes = file.token_bytes.of(token.id);
    if (!bytes.empty() && bytes != token.content) {
      return invalid(str_cat(where, ": id ", token.id, " already stands for ", show_text(bytes)));
    }
    if (bytes.empty()) file.token_bytes.set(token.id, token.content);
    file.added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

/// The text of a file and the bytes behind it that the parser wants to be there.
HugeVector<char> padded_copy(std::string_view json) {
  HugeVector<char> padded;
  padded.reserve(json.size() + simdjson::SIMDJSON_PADDING);
  padded.assign(json.begin(), json.end());
  padded.resize(json.size() + simdjson::SIMDJSON_PADDING);
  return padded;
}

absl::StatusOr<TokenizerFile> parse_padded(const HugeVector<char>& padded) {
  const std::size_t size = padded.size() - simdjson::SIMDJSON_PADDING;
  simdjson::dom::parser parser;
  if (parser.allocate(size) != simdjson::SUCCESS ||
      parser.doc.allocate(size) != simdjson::SUCCESS) {
    return invalid("out of memory");
  }
  // The parser allocates for the worst case and writes to a part of it: for each byte of the file
  // to about one of values, one of strings and one of punctuation.
  advise_huge(parser.doc.tape.get(), size);
  advise_huge(parser.doc.string_buf.get(), size);
  advise_huge(parser.implementation->structural_indexes.get(), size);
  element parsed;
  if (const auto error = parser.parse(padded.data(), size, false).get(parsed); error != 0) {
    return invalid(str_cat("parse error: ", simdjson::error_message(error)));
  }
  const Value root = parsed;
  if (!parsed.is_object()) return invalid("must be a JSON object");
  RETURN_IF_ERROR(check_keys(root, ""));
  TokenizerFile file;
  RETURN_IF_ERROR(check_normalizer(root));
  ASSIGN_OR_RETURN(file.split_patterns, read_pre_tokenizer(root));
  RETURN_IF_ERROR(read_model(root, file));
  RETURN_IF_ERROR(read_added_tokens(root, file));
  return file;
}

}  // namespace

absl::StatusOr<TokenizerFile> parse_tokenizer_file(std::string_view json) {
  if (json.size() > kMaxFileBytes) return invalid("more than 1 GB");
  return parse_padded(padded_copy(json));
}

absl::StatusOr<TokenizerFile> read_tokenizer_file(const std::string& path) {
  // Read, not mapped: every page of a mapping is a fault, and the parser wants a padded copy.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  if (file == nullptr) return absl::ErrnoToStatus(errno, "cannot be read");
  std::setvbuf(file.get(), nullptr, _IONBF, 0);
  HugeVector<char> text;
  while (true) {
    const std::size_t size = text.size();
    text.resize(std::max<std::size_t>(2 * size, 8u << 20));
    const std::size_t count = std::fread(text.data() + size, 1, text.size() - size, file.get());
    text.resize(size + count);
    if (std::ferror(file.get()) != 0) return absl::ErrnoToStatus(errno, "cannot be read");
    if (count == 0) break;
    if (text.size() > kMaxFileBytes) return invalid("more than 1 GB");
  }
  text.resize(text.size() + simdjson::SIMDJSON_PADDING);
  return parse_padded(text);
}

}  // namespace millrace::api::tokenizer
