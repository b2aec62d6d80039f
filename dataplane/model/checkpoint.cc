#include "dataplane/model/checkpoint.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "common/annotate.h"
#include "common/check.h"
#include "common/crypto/sha256.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/model/safetensors.h"

namespace millrace::dataplane::model {
namespace {

constexpr std::size_t kListedProblems = 50;
constexpr std::string_view kConfigFile = "config.json";
constexpr std::string_view kTokenizerFile = "tokenizer.json";
constexpr std::string_view kTokenMapFile = "engram_token_map.json";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kSingleShard = "model.safetensors";

/// Collects every problem, reports a bounded number of them in one error.
class Problems {
 public:
  void add(std::string problem) {
    if (listed_.size() < kListedProblems) listed_.push_back(std::move(problem));
    ++count_;
  }

  absl::Status status(std::string_view folder) const {
    if (count_ == 0) return absl::OkStatus();
    std::string text = str_cat(folder, ": ", count_, count_ == 1 ? " tensor" : " tensors",
                               " do not match config.json:");
    for (const std::string& problem : listed_) text += str_cat("\n  ", problem);
    if (count_ > listed_.size()) text += str_cat("\n  … and ", count_ - listed_.size(), " more");
    return absl::InvalidArgumentError(text);
  }

 private:
  std::vector<std::string> listed_;
  std::size_t count_ = 0;
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += str_cat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

class MappedCheckpoint : public Checkpoint {
 public:
  explicit MappedCheckpoint(std::string folder) : folder_(std::move(folder)) {}

  absl::Status load() {
    RETURN_IF_ERROR(load_config());
    std::map<std::string, std::string> index;
    ASSIGN_OR_RETURN(const std::vector<std::string> names, shard_names(index));
    std::map<std::string, StoredTensor> stored;
    for (const std::string& name : names) RETURN_IF_ERROR(map_shard(name, index, stored));
    digest_ = hash_.finish();
    return match(stored);
  }

  const ModelConfig& config() const override { return config_; }

  const TensorView& tensor(std::string_view name) const override {
    const auto it = tensors_.find(std::string(name));
    CHECK(it != tensors_.end(), name);
    return it->second;
  }

  std::span<const std::int32_t> engram_token_map() const override { return token_map_; }
  const std::array<std::uint8_t, 32>& artifact_digest() const override { return digest_; }

 private:
  std::string path_of(std::string_view file) const { return str_cat(folder_, "/", file); }

  absl::Status load_config() {
    ASSIGN_OR_RETURN(const std::string text, read_file(path_of(kConfigFile)));
    absl::StatusOr<ModelConfig> config = parse_model_config(text);
    if (!config.ok()) return annotate(config.status(), folder_);
    config_ = *std::move(config);
    hash_file(kConfigFile, as_bytes(text));

    absl::StatusOr<std::string> tokenizer = read_file(path_of(kTokenizerFile));
    if (tokenizer.ok()) {
      hash_file(kTokenizerFile, as_bytes(*tokenizer));
    } else if (!absl::IsNotFound(tokenizer.status())) {
      return tokenizer.status();
    }
    if (config_.engram_layer_ids.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string map, read_file(path_of(kTokenMapFile)));
    hash_file(kTokenMapFile, as_bytes(map));
    return annotate(load_token_map(map), path_of(kTokenMapFile));
  }

  absl::Status load_token_map(const std::string& text) {
    ASSIGN_OR_RETURN(const Json document, parse_json(text));
    const auto list = document.find("token_map");
    if (!document.is_object() || list == document.end() || !list->is_array()) {
      return absl::InvalidArgumentError("must be an object with a list \"token_map\"");
    }
    if (list->size() != static_cast<std::size_t>(config_.vocab_size)) {
      return absl::InvalidArgumentError(
          str_cat("token_map has ", list->size(), " entries, vocab_size is ", config_.vocab_size));
    }
    const std::int64_t bound = config_.engram_compressed_vocab_size;
    std::vector<bool> used(static_cast<std::size_t>(bound), false);
    for (const Json& item : *list) {
      const std::int64_t id = item.is_number_integer() ? item.get<std::int64_t>() : -1;
      if (id < 0 || id >= bound) {
        return absl::InvalidArgumentError(
            str_cat("token_map entry ", token_map_.size(), " must lie in [0, ", bound, ")"));
      }
      used[static_cast<std::size_t>(id)] = true;
      token_map_.push_back(static_cast<std::int32_t>(id));
    }
    const auto distinct = std::count(used.begin(), used.end(), true);
    if (distinct != bound) {
      return absl::InvalidArgumentError(str_cat(
          "token_map has ", distinct, " distinct ids, engram_compressed_vocab_size is ", bound));
    }
    return absl::OkStatus();
  }

  /// Names of the shards; index maps every tensor to its shard and is empty for a single file.
  absl::StatusOr<std::vector<std::string>> shard_names(std::map<std::string, std::string>& index) {
    absl::StatusOr<std::string> text = read_file(path_of(kIndexFile));
    if (absl::IsNotFound(text.status())) return std::vector<std::string>{std::string(kSingleShard)};
    RETURN_IF_ERROR(text.status());
    absl::StatusOr<Json> document = parse_json(*text, {.max_members = kMaxTensors});
    if (!document.ok()) return annotate(document.status(), path_of(kIndexFile));
    const auto map = document->find("weight_map");
    if (!document->is_object() || map == document->end() || !map->is_object() || map->empty()) {
      return absl::InvalidArgumentError(
          str_cat(path_of(kIndexFile), ": must be an object with an object \"weight_map\""));
    }
    std::set<std::string> names;
    for (const auto& [tensor, file] : map->items()) {
      // A shard lies in the folder itself: an index cannot make us read elsewhere.
      if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
        return absl::InvalidArgumentError(
            str_cat(path_of(kIndexFile), ": tensor ", tensor, ": its shard is no plain file name"));
      }
      index[tensor] = file.get<std::string>();
      names.insert(index[tensor]);
    }
    return std::vector<std::string>(names.begin(), names.end());
  }

  absl::Status map_shard(const std::string& name, const std::map<std::string, std::string>& index,
                         std::map<std::string, StoredTensor>& stored) {
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path_of(name)));
    shards_.push_back(std::move(file));
    const auto bytes = shards_.back().bytes();
    ASSIGN_OR_RETURN(std::vector<StoredTensor> tensors, parse_safetensors(bytes, path_of(name)));
    for (StoredTensor& tensor : tensors) {
      const auto entry = index.find(tensor.name);
      if (!index.empty() && entry != index.end() && entry->second != name) {
        return absl::InvalidArgumentError(str_cat(path_of(kIndexFile), ": tensor ", tensor.name,
                                                  " is in ", name, ", not in ", entry->second));
      }
      std::string tensor_name = tensor.name;
      if (stored.contains(tensor_name)) {
        return absl::InvalidArgumentError(
            str_cat(path_of(name), ": tensor ", tensor_name, " occurs in two shards"));
      }
      stored.emplace(std::move(tensor_name), std::move(tensor));
    }
    hash_file(name, bytes);
    return absl::OkStatus();
  }

  absl::Status match(std::map<std::string, StoredTensor>& stored) {
    Problems problems;
    for (const TensorSpec& spec : expected_tensors(config_)) {
      const auto it = stored.find(spec.name);
      if (it == stored.end()) {
        problems.add(str_cat(spec.name, ": missing, expected ", describe(spec.type, spec.shape)));
        continue;
      }
      const StoredTensor& found = it->second;
      if (found.type != data_type_name(spec.type) || found.shape != spec.shape) {
        problems.add(str_cat(spec.name, ": ", found.type, " ", shape_text(found.shape),
                             ", expected ", describe(spec.type, spec.shape)));
      }
      tensors_.emplace(spec.name, TensorView{spec.type, spec.shape, found.bytes});
      stored.erase(it);
    }
    for (const auto& [name, tensor] : stored) {
      problems.add(str_cat(name, ": extra, ", tensor.type, " ", shape_text(tensor.shape)));
    }
    return problems.status(folder_);
  }

  static std::span<const std::uint8_t> as_bytes(const std::string& text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
  }

  void hash_file(std::string_view name, std::span<const std::uint8_t> content) {
    hash_.update(name);
    hash_.update(std::string_view("\0", 1));
    hash_.update(sha256(content));
  }

  const std::string folder_;
  ModelConfig config_;
  std::vector<MappedFile> shards_;
  std::unordered_map<std::string, TensorView> tensors_;
  std::vector<std::int32_t> token_map_;
  Sha256 hash_;
  std::array<std::uint8_t, 32> digest_{};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& folder) {
  auto checkpoint = std::make_unique<MappedCheckpoint>(folder);
  RETURN_IF_ERROR(checkpoint->load());
  return checkpoint;
}

}  // namespace millrace::dataplane::model
