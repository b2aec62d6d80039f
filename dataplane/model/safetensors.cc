#include "dataplane/model/safetensors.h"

#include <algorithm>
#include <limits>
#include <map>

#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::dataplane::model {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kLengthBytes = 8;

/// Bits of one element, for all types of the file format; 0 for an unknown one.
std::int64_t element_bits(std::string_view type) {
  static const std::map<std::string_view, std::int64_t> kBits = {
      {"F64", 64}, {"I64", 64},    {"U64", 64},    {"F32", 32},    {"I32", 32}, {"U32", 32},
      {"F16", 16}, {"BF16", 16},   {"I16", 16},    {"U16", 16},    {"I8", 8},   {"U8", 8},
      {"BOOL", 8}, {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4}};
  const auto it = kBits.find(type);
  return it == kBits.end() ? 0 : it->second;
}

std::uint64_t read_u64(std::span<const std::uint8_t> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) value |= std::uint64_t{bytes[i]} << (8 * i);
  return value;
}

/// Reads one header entry; messages are completed with file and tensor name by the caller.
class EntryReader {
 public:
  EntryReader(const Json& entry, std::span<const std::uint8_t> data) : entry_(entry), data_(data) {}

  absl::StatusOr<StoredTensor> read() {
    StoredTensor tensor;
    ASSIGN_OR_RETURN(tensor.type, json_string(entry_, "dtype"));
    ASSIGN_OR_RETURN(tensor.shape, integers("shape"));
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> range, integers("data_offsets"));
    const std::int64_t bits = element_bits(tensor.type);
    if (bits == 0) return absl::DataLossError(str_cat("unknown dtype \"", tensor.type, "\""));
    ASSIGN_OR_RETURN(const std::int64_t bytes, size_of(tensor.shape, bits));
    const auto available = static_cast<std::int64_t>(data_.size());
    if (range.size() != 2 || range[0] > range[1])
      return absl::DataLossError("data_offsets is no range");
    if (range[1] > available) {
      return absl::DataLossError(str_cat("ends at byte ", range[1], " of ", available,
                                         ": the file is truncated or corrupt"));
    }
    if (range[1] - range[0] != bytes) {
      return absl::DataLossError(
          str_cat("holds ", range[1] - range[0], " bytes, its type and shape need ", bytes));
    }
    tensor.bytes =
        data_.subspan(static_cast<std::size_t>(range[0]), static_cast<std::size_t>(bytes));
    return tensor;
  }

 private:
  absl::StatusOr<std::vector<std::int64_t>> integers(std::string_view key) const {
    const auto it = entry_.find(key);
    if (it == entry_.end() || !it->is_array() || it->size() > 16) {
      return absl::DataLossError(str_cat(key, " is no short list"));
    }
    std::vector<std::int64_t> values;
    for (const Json& item : *it) {
      // Negative numbers are signed in the JSON library, so unsigned means 0 or more.
      if (!item.is_number_unsigned() ||
          item.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
        return absl::DataLossError(str_cat(key, " holds something else than a natural number"));
      }
      values.push_back(item.get<std::int64_t>());
    }
    return values;
  }

  static absl::StatusOr<std::int64_t> size_of(const std::vector<std::int64_t>& shape,
                                              std::int64_t bits) {
    std::int64_t total = bits;
    for (std::int64_t extent : shape) {
      if (__builtin_mul_overflow(total, extent, &total))
        return absl::DataLossError("its size overflows");
    }
    if (total % 8 != 0) return absl::DataLossError("it ends inside a byte");
    return total / 8;
  }

  const Json& entry_;
  std::span<const std::uint8_t> data_;
};

/// Tensors sorted by offset must follow each other without gap or overlap and end with the data.
absl::Status check_coverage(const std::vector<StoredTensor>& tensors,
                            std::span<const std::uint8_t> data, std::string_view label) {
  const std::uint8_t* next = data.data();
  for (const StoredTensor& tensor : tensors) {
    if (tensor.bytes.data() != next) {
      return absl::DataLossError(
          str_cat(label, ": tensor ", tensor.name,
                  tensor.bytes.data() < next ? " overlaps the one before" : " follows a gap"));
    }
    next += tensor.bytes.size();
  }
  const auto rest = data.data() + data.size() - next;
  if (rest != 0)
    return absl::DataLossError(str_cat(label, ": ", rest, " bytes belong to no tensor"));
  return absl::OkStatus();
}

}  // namespace

bool parse_data_type(std::string_view spelling, DataType& type) {
  for (DataType known :
       {DataType::kF32, DataType::kBF16, DataType::kF8E4M3, DataType::kF8E8M0, DataType::kI8}) {
    if (spelling == data_type_name(known)) {
      type = known;
      return true;
    }
  }
  return false;
}

absl::StatusOr<std::vector<StoredTensor>> parse_safetensors(std::span<const std::uint8_t> file,
                                                            std::string_view label) {
  if (file.size() < kLengthBytes) {
    return absl::DataLossError(str_cat(label, ": too short for a safetensors file"));
  }
  const std::uint64_t header_bytes = read_u64(file);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - kLengthBytes) {
    return absl::DataLossError(
        str_cat(label, ": header of ", header_bytes,
                " bytes does not fit; not a safetensors file, or truncated"));
  }
  const auto header = file.subspan(kLengthBytes, static_cast<std::size_t>(header_bytes));
  const auto data = file.subspan(kLengthBytes + header.size());
  absl::StatusOr<Json> json = parse_json(
      {reinterpret_cast<const char*>(header.data()), header.size()}, {.max_members = kMaxTensors});
  if (!json.ok()) return absl::DataLossError(str_cat(label, ": ", message_of(json.status())));
  if (!json->is_object())
    return absl::DataLossError(str_cat(label, ": the header is no JSON object"));

  std::vector<StoredTensor> tensors;
  for (const auto& [name, entry] : json->items()) {
    if (name == "__metadata__") continue;
    if (!entry.is_object()) {
      return absl::DataLossError(str_cat(label, ": tensor ", name, ": its entry is no object"));
    }
    absl::StatusOr<StoredTensor> tensor = EntryReader(entry, data).read();
    if (!tensor.ok()) {
      return absl::DataLossError(
          str_cat(label, ": tensor ", name, ": ", message_of(tensor.status())));
    }
    tensor->name = name;
    tensors.push_back(*std::move(tensor));
  }
  // Empty tensors sort before the one that starts at the same place.
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    if (a.bytes.data() != b.bytes.data()) return a.bytes.data() < b.bytes.data();
    return a.bytes.size() < b.bytes.size();
  });
  RETURN_IF_ERROR(check_coverage(tensors, data, label));
  return tensors;
}

}  // namespace millrace::dataplane::model
