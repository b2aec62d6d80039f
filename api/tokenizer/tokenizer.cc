#include "api/tokenizer/tokenizer.h"

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include "api/tokenizer/added_token_finder.h"
#include "api/tokenizer/encode_plan.h"
#include "api/tokenizer/text_encoder.h"
#include "api/tokenizer/token_bytes.h"
#include "api/tokenizer/tokenizer_file.h"
#include "api/tokenizer/utf8_stream.h"
#include "common/annotate.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::tokenizer {
namespace {

// A task long enough that handing it to another thread costs a small part of it (it takes some
// 100 us), short enough that the last ones end together.
constexpr std::size_t kTaskBytes = std::size_t{16} << 10;

absl::Status check_utf8(std::string_view text) {
  const std::size_t offset = find_invalid_utf8(text);
  if (offset == std::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("text is not valid UTF-8 at byte ", offset));
}

absl::Status check_utf8(std::span<const PromptPart> parts) {
  for (const PromptPart& part : parts) {
    if (part.token < 0) RETURN_IF_ERROR(check_utf8(part.text));
  }
  return absl::OkStatus();
}

/// A token has a byte at least.
std::size_t most_ids(std::span<const PromptPart> parts) {
  std::size_t ids = 0;
  for (const PromptPart& part : parts) ids += part.token >= 0 ? 1 : part.text.size();
  return ids;
}

}  // namespace

struct Tokenizer::Tables {
  TokenBytes token_bytes;
  std::unordered_map<std::string, TokenId> control_tokens;
  AddedTokenFinder added_tokens;
  TextEncoder encoder;
};

Tokenizer::Tokenizer(std::unique_ptr<const Tables> tables)
    : tables_(std::move(tables)), token_bytes_(tables_->token_bytes) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::open(const std::string& path) {
  absl::StatusOr<TokenizerFile> file = read_tokenizer_file(path);
  if (!file.ok()) return annotate(file.status(), path);
  auto tokenizer = from_file(std::move(*file));
  if (!tokenizer.ok()) return annotate(tokenizer.status(), path);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view json) {
  ASSIGN_OR_RETURN(TokenizerFile file, parse_tokenizer_file(json));
  return from_file(std::move(file));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::from_file(TokenizerFile file) {
  ASSIGN_OR_RETURN(TextEncoder encoder, TextEncoder::create(file));
  AddedTokenFinder added_tokens(file.added_tokens);
  std::unordered_map<std::string, TokenId> control_tokens;
  for (const AddedToken& token : file.added_tokens) control_tokens.emplace(token.content, token.id);
  return std::unique_ptr<Tokenizer>(new Tokenizer(
      std::make_unique<const Tables>(Tables{std::move(file.token_bytes), std::move(control_tokens),
                                            std::move(added_tokens), std::move(encoder)})));
}

absl::StatusOr<TokenId*> Tokenizer::write_parts(std::span<const PromptPart> parts,
                                                TokenId* out) const {
  for (const PromptPart& part : parts) {
    if (part.token >= 0) {
      *out++ = part.token;
    } else {
      ASSIGN_OR_RETURN(out, tables_->encoder.encode(part.text, out));
    }
  }
  return out;
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::encode_checked(std::span<const PromptPart> parts,
                                                               EncodePool* pool) const {
  const bool can_cut = pool != nullptr && tables_->encoder.can_cut();
  const std::size_t task_bytes = pool != nullptr ? kTaskBytes : SIZE_MAX;
  const EncodePlan plan = plan_encoding(parts, can_cut, task_bytes);
  // Every task has room for the most ids it can give. Memory that is not written to costs nothing,
  // and growing one list for each task, on other threads, cost as much as encoding.
  std::vector<std::size_t> begins{0};
  for (std::size_t i = 0; i < plan.task_count(); ++i) {
    begins.push_back(begins.back() + most_ids(plan.task(i)));
  }
  const auto room = std::make_unique_for_overwrite<TokenId[]>(begins.back());
  std::vector<absl::StatusOr<TokenId*>> ends(plan.task_count(), nullptr);
  const auto encode = [&](std::size_t i) {
    ends[i] = write_parts(plan.task(i), room.get() + begins[i]);
  };
  if (pool != nullptr) {
    pool->run(plan.task_count(), encode);
  } else {
    for (std::size_t i = 0; i < plan.task_count(); ++i) encode(i);
  }
  std::size_t count = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    RETURN_IF_ERROR(ends[i].status());
    count += static_cast<std::size_t>(*ends[i] - (room.get() + begins[i]));
  }
  std::vector<TokenId> ids;
  ids.reserve(count);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    ids.insert(ids.end(), room.get() + begins[i], *ends[i]);
  }
  return ids;
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::encode_parts(std::span<const PromptPart> parts,
                                                             EncodePool* pool) const {
  RETURN_IF_ERROR(check_utf8(parts));
  return encode_checked(parts, pool);
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::encode_text(std::string_view text,
                                                            EncodePool* pool) const {
  const PromptPart part{text};
  return encode_parts({&part, 1}, pool);
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::encode_with_special(std::string_view text,
                                                                    EncodePool* pool) const {
  RETURN_IF_ERROR(check_utf8(text));
  return encode_checked(tables_->added_tokens.split(text), pool);
}

absl::StatusOr<std::size_t> Tokenizer::count_parts(std::span<const PromptPart> parts) const {
  RETURN_IF_ERROR(check_utf8(parts));
  std::size_t count = 0;
  for (const PromptPart& part : parts) {
    if (part.token >= 0) {
      ++count;
    } else {
      ASSIGN_OR_RETURN(const std::size_t tokens, tables_->encoder.count(part.text));
      count += tokens;
    }
  }
  return count;
}

absl::StatusOr<std::size_t> Tokenizer::count_text(std::string_view text) const {
  const PromptPart part{text};
  return count_parts({&part, 1});
}

std::optional<TokenId> Tokenizer::control_token(std::string_view spelling) const {
  const auto it = tables_->control_tokens.find(std::string(spelling));
  if (it == tables_->control_tokens.end()) return std::nullopt;
  return it->second;
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  Utf8Stream stream;
  std::string text;
  for (TokenId id : ids) stream.push(token_bytes(id), text);
  stream.finish(text);
  return text;
}

}  // namespace millrace::api::tokenizer
