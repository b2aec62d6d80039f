#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "dataplane/engine/engine.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/model/safetensors.h"

namespace millrace::dataplane::engine::oracle {

/// The tensors of one file that the PyTorch reference wrote (dataplane/reference/golden.py draws
/// them). Asking for a tensor that is not there, or as another type, fails the test run.
class TensorFile {
 public:
  explicit TensorFile(const std::string& path);

  bool has(const std::string& name) const { return tensors_.contains(name); }
  const std::vector<std::int64_t>& shape(const std::string& name) const { return find(name).shape; }
  std::vector<float> f32(const std::string& name) const;
  std::vector<std::int32_t> i32(const std::string& name) const;
  std::span<const std::uint8_t> u8(const std::string& name) const;

 private:
  const model::StoredTensor& find(const std::string& name) const;

  MappedFile file_;
  std::map<std::string, model::StoredTensor> tensors_;
};

/// One entry of the manifest.
struct Case {
  std::string name, path, kind;
  Switch rounding = Switch::kOn;
  Switch decoder_replay = Switch::kOn;
  int prompt_tokens = 0, compute_start = 0, write_floor = 0;

  EngineSwitches switches() const {
    return {.rounding = rounding, .decoder_replay = decoder_replay};
  }
};

struct Model {
  std::string name;
  std::unique_ptr<model::Checkpoint> checkpoint;
  std::vector<Case> cases;

  const model::ModelConfig& config() const { return checkpoint->config(); }
};

/// Folder that the CTest fixture fills.
std::string fixture_folder();
/// All models of the manifest, opened once.
const std::vector<Model>& models();

}  // namespace millrace::dataplane::engine::oracle
