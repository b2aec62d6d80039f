#include "api/tokenizer/tokenizer.h"

#include <unordered_map>
#include <utility>

#include "api/tokenizer/bpe.h"
#include "api/tokenizer/pre_tokenizer.h"
#include "api/tokenizer/tokenizer_file.h"
#include "api/tokenizer/utf8_stream.h"
#include "common/annotate.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::tokenizer {
namespace {

/// Finds added tokens in text: a trie of their spellings.
class AddedTokenTrie {
 public:
  AddedTokenTrie() : nodes_(1) {}

  void add(std::string_view spelling, TokenId id) {
    std::size_t node = 0;
    for (char c : spelling) {
      const auto [it, is_new] = edges_.emplace(edge(node, c), nodes_.size());
      if (is_new) nodes_.push_back(-1);
      node = it->second;
    }
    nodes_[node] = id;
  }

  struct Match {
    TokenId id = -1;
    std::size_t length = 0;
  };

  /// The longest token that text begins with; length 0 when none does.
  Match longest_prefix(std::string_view text) const {
    Match best;
    std::size_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto it = edges_.find(edge(node, text[i]));
      if (it == edges_.end()) break;
      node = it->second;
      if (nodes_[node] >= 0) best = {nodes_[node], i + 1};
    }
    return best;
  }

 private:
  static std::uint64_t edge(std::size_t node, char c) {
    return static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(c);
  }

  std::vector<TokenId> nodes_;  // the token that ends at a node, or -1
  std::unordered_map<std::uint64_t, std::size_t> edges_;
};

/// A stretch of text, or a token that stands for one.
struct Stretch {
  std::string_view text;
  TokenId token = -1;
};

void split_at_tokens(std::string_view text, const AddedTokenTrie& trie, std::vector<Stretch>& out) {
  std::size_t from = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const AddedTokenTrie::Match match = trie.longest_prefix(text.substr(at));
    if (match.length == 0) {
      ++at;
      continue;
    }
    if (at > from) out.push_back({text.substr(from, at - from)});
    out.push_back({text.substr(at, match.length), match.id});
    at += match.length;
    from = at;
  }
  if (from < text.size()) out.push_back({text.substr(from)});
}

}  // namespace

struct Tokenizer::Tables {
  std::vector<std::string> token_bytes;
  std::unordered_map<std::string, TokenId> control_tokens;
  // The reference matches tokens that are not normalized over the whole text first, then the
  // others over what is left.
  AddedTokenTrie first_pass;
  AddedTokenTrie second_pass;
  std::unique_ptr<const PreTokenizer> pre_tokenizer;
  std::unique_ptr<const Bpe> bpe;
};

Tokenizer::Tokenizer(std::unique_ptr<const Tables> tables) : tables_(std::move(tables)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::open(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  auto tokenizer =
      from_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  if (!tokenizer.ok()) return annotate(tokenizer.status(), path);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view json) {
  ASSIGN_OR_RETURN(TokenizerFile file, parse_tokenizer_file(json));
  auto tables = std::make_unique<Tables>();
  ASSIGN_OR_RETURN(tables->pre_tokenizer, PreTokenizer::compile(file.split_patterns));
  tables->bpe = std::make_unique<const Bpe>(file.byte_tokens, file.merges);
  tables->token_bytes = std::move(file.token_bytes);
  for (const AddedToken& token : file.added_tokens) {
    tables->control_tokens.emplace(token.content, token.id);
    (token.normalized ? tables->second_pass : tables->first_pass).add(token.content, token.id);
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(tables)));
}

absl::Status Tokenizer::append_text(std::string_view text, std::vector<TokenId>& ids) const {
  std::vector<std::string_view> pieces;
  RETURN_IF_ERROR(tables_->pre_tokenizer->cut(text, pieces));
  for (std::string_view piece : pieces) tables_->bpe->encode(piece, ids);
  return absl::OkStatus();
}

namespace {

absl::Status check_utf8(std::string_view text) {
  const std::size_t offset = find_invalid_utf8(text);
  if (offset == std::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("text is not valid UTF-8 at byte ", offset));
}

}  // namespace

absl::StatusOr<std::vector<TokenId>> Tokenizer::encode_text(std::string_view text) const {
  RETURN_IF_ERROR(check_utf8(text));
  std::vector<TokenId> ids;
  RETURN_IF_ERROR(append_text(text, ids));
  return ids;
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::encode_with_special(std::string_view text) const {
  RETURN_IF_ERROR(check_utf8(text));
  std::vector<Stretch> first;
  split_at_tokens(text, tables_->first_pass, first);
  std::vector<Stretch> stretches;
  for (const Stretch& stretch : first) {
    if (stretch.token >= 0) {
      stretches.push_back(stretch);
    } else {
      split_at_tokens(stretch.text, tables_->second_pass, stretches);
    }
  }
  std::vector<TokenId> ids;
  for (const Stretch& stretch : stretches) {
    if (stretch.token >= 0) {
      ids.push_back(stretch.token);
    } else {
      RETURN_IF_ERROR(append_text(stretch.text, ids));
    }
  }
  return ids;
}

std::optional<TokenId> Tokenizer::control_token(std::string_view spelling) const {
  const auto it = tables_->control_tokens.find(std::string(spelling));
  if (it == tables_->control_tokens.end()) return std::nullopt;
  return it->second;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= id_bound()) return {};
  return tables_->token_bytes[static_cast<std::size_t>(id)];
}

TokenId Tokenizer::id_bound() const { return static_cast<TokenId>(tables_->token_bytes.size()); }

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  Utf8Stream stream;
  std::string text;
  for (TokenId id : ids) stream.push(token_bytes(id), text);
  stream.finish(text);
  return text;
}

}  // namespace millrace::api::tokenizer
