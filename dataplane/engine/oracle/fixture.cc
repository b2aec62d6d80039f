#include "dataplane/engine/oracle/fixture.h"

#include <cstring>

#include "common/check.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::dataplane::engine::oracle {
namespace {

template <typename T>
std::vector<T> copy_of(const model::StoredTensor& tensor, std::string_view type) {
  CHECK(tensor.type == type, tensor.name);
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

template <typename T>
T value_or_die(absl::StatusOr<T> value) {
  CHECK(value.ok(), message_of(value.status()));
  return *std::move(value);
}

Switch switch_of(const Json& entry, const char* key) {
  return value_or_die(json_string(entry, key)) == "on" ? Switch::kOn : Switch::kOff;
}

Case read_case(const Json& entry, const std::string& folder) {
  const auto number = [&](const char* key) {
    return static_cast<int>(value_or_die(json_int(entry, key)));
  };
  return {.name = value_or_die(json_string(entry, "name")),
          .path = str_cat(folder, "/", value_or_die(json_string(entry, "file"))),
          .kind = value_or_die(json_string(entry, "kind")),
          .rounding = switch_of(entry, "rounding"),
          .decoder_replay = switch_of(entry, "decoder_replay"),
          .prompt_tokens = number("prompt_tokens"),
          .compute_start = number("compute_start"),
          .write_floor = number("write_floor")};
}

std::vector<Model> load_models() {
  const std::string root = fixture_folder();
  const Json manifest = value_or_die(parse_json(value_or_die(read_file(root + "/manifest.json"))));
  CHECK(value_or_die(json_int(manifest, "format")) == 1);
  std::vector<Model> loaded;
  for (const Json& entry : manifest["models"]) {
    const std::string folder = str_cat(root, "/", value_or_die(json_string(entry, "folder")));
    Model& model = loaded.emplace_back();
    model.name = value_or_die(json_string(entry, "name"));
    model.checkpoint = value_or_die(model::Checkpoint::open(folder));
    for (const Json& item : entry["cases"]) model.cases.push_back(read_case(item, folder));
    CHECK(!model.cases.empty(), model.name);
  }
  CHECK(!loaded.empty());
  return loaded;
}

}  // namespace

TensorFile::TensorFile(const std::string& path) : file_(value_or_die(MappedFile::open(path))) {
  for (model::StoredTensor& tensor : value_or_die(model::parse_safetensors(file_.bytes(), path))) {
    std::string name = tensor.name;
    tensors_.emplace(std::move(name), std::move(tensor));
  }
}

const model::StoredTensor& TensorFile::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  CHECK(it != tensors_.end(), name);
  return it->second;
}

std::vector<float> TensorFile::f32(const std::string& name) const {
  return copy_of<float>(find(name), "F32");
}

std::vector<std::int32_t> TensorFile::i32(const std::string& name) const {
  return copy_of<std::int32_t>(find(name), "I32");
}

std::span<const std::uint8_t> TensorFile::u8(const std::string& name) const {
  CHECK(find(name).type == "U8", name);
  return find(name).bytes;
}

std::string fixture_folder() { return MILLRACE_BINARY_DIR "/golden"; }

const std::vector<Model>& models() {
  static const std::vector<Model> loaded = load_models();
  return loaded;
}

}  // namespace millrace::dataplane::engine::oracle
