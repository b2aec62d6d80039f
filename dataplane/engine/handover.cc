#include "dataplane/engine/handover.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/engine/kept_window.h"

namespace millrace::dataplane::engine {
namespace {

constexpr char kMagic[8] = {'M', 'I', 'L', 'L', 'R', 'K', 'V', '1'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kFixedHeaderBytes = 72;
constexpr std::size_t kChecksumOffset = 24;
constexpr std::size_t kMaxHeaderBytes = 1 << 16;

static_assert(std::endian::native == std::endian::little,
              "the format is written as it lies in memory");

/// Writes values one behind the other.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}

  template <typename T>
  void put(T value) {
    copy(&value, sizeof value);
  }
  /// data may be null when there is nothing to copy.
  void copy(const void* data, std::size_t bytes) {
    if (bytes > 0) std::memcpy(take(bytes).data(), data, bytes);
  }
  std::span<std::byte> take(std::size_t bytes) {
    CHECK(bytes <= out_.size() - at_);
    at_ += bytes;
    return out_.subspan(at_ - bytes, bytes);
  }
  std::size_t position() const { return at_; }

 private:
  std::span<std::byte> out_;
  std::size_t at_ = 0;
};

/// Reads them back; the caller has checked the total.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}

  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  int get_int() { return static_cast<int>(get<std::uint32_t>()); }
  std::span<const std::byte> take(std::size_t bytes) {
    CHECK(bytes <= in_.size() - at_);
    at_ += bytes;
    return in_.subspan(at_ - bytes, bytes);
  }

 private:
  std::span<const std::byte> in_;
  std::size_t at_ = 0;
};

/// FNV-1a with the checksum's own place read as zero. Catches torn or mixed-up buffers; it is no
/// protection against intent, which the transport's identity check is for.
std::uint64_t header_checksum(std::span<const std::byte> header) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < header.size(); ++i) {
    const bool own = i >= kChecksumOffset && i < kChecksumOffset + sizeof hash;
    hash = (hash ^ (own ? 0 : static_cast<std::uint64_t>(header[i]))) * 0x100000001b3;
  }
  return hash;
}

std::size_t header_bytes_for(std::size_t layout_id_bytes) {
  return (kFixedHeaderBytes + layout_id_bytes + 7) / 8 * 8;
}

/// Position of row `i` of the last `rows` before `length`.
int position_of(int length, std::size_t rows, std::size_t i) {
  return length - static_cast<int>(rows) + static_cast<int>(i);
}

absl::Status corrupt(std::string_view what) {
  return absl::DataLossError(str_cat("KV hand-over: ", what));
}

absl::Status check_numbers(const HandoverHeader& h, int max_position) {
  const bool ordered = h.length >= 1 && h.length <= max_position && h.prompt_tokens >= 1 &&
                       h.prompt_tokens <= max_position && h.window_floor >= 0 &&
                       h.window_floor <= h.length && h.write_floor >= h.window_floor &&
                       h.write_floor <= h.prompt_tokens && h.decoder_floor >= 0 &&
                       h.decoder_floor <= h.prompt_tokens;
  return ordered ? absl::OkStatus() : corrupt("its positions contradict each other");
}

}  // namespace

std::size_t HandoverCodec::header_bytes() const {
  return header_bytes_for(memory_.layout.id().size());
}

std::size_t HandoverCodec::window_rows(int length, int floor) const {
  return static_cast<std::size_t>(
      std::max(0, length - std::max(floor, length - memory_.geometry.window)));
}

int HandoverCodec::floor_of(const Sequence& sequence, int layer) const {
  return layer < config_.first_decoder_layer() ? sequence.window_floor : sequence.decoder_floor;
}

std::size_t HandoverCodec::payload_bytes(int length, int window_floor, int decoder_floor) const {
  std::size_t bytes = static_cast<std::size_t>(length) * sizeof(std::int32_t);
  bytes += static_cast<std::size_t>(kv::blocks_for(length)) * memory_.layout.block_bytes();
  const std::size_t row_bytes = kv::window_row_bytes(config_, memory_.layout.encoding());
  const auto decoder_layers =
      static_cast<std::size_t>(config_.num_hidden_layers - config_.first_decoder_layer());
  const auto encoder_layers = static_cast<std::size_t>(config_.first_decoder_layer());
  bytes += encoder_layers * window_rows(length, window_floor) * row_bytes;
  bytes += decoder_layers * window_rows(length, decoder_floor) * row_bytes;
  for (const kv::SourceLayout& source : memory_.layout.sources()) {
    bytes += static_cast<std::size_t>(length % source.ratio) * 2 *
             static_cast<std::size_t>(config_.head_dim) * sizeof(float);
  }
  return bytes;
}

std::size_t HandoverCodec::encoded_bytes(const Sequence& s) const {
  return header_bytes() + payload_bytes(s.length(), s.window_floor, s.decoder_floor);
}

void HandoverCodec::encode(const Sequence& s, std::span<std::byte> out) const {
  CHECK(out.size() == encoded_bytes(s));
  const std::string& id = memory_.layout.id();
  const auto u32 = [](auto value) { return static_cast<std::uint32_t>(value); };
  Writer w(out);
  w.copy(kMagic, sizeof kMagic);
  w.put(kVersion);
  w.put(u32(header_bytes()));
  w.put(static_cast<std::uint64_t>(out.size()));
  w.put(std::uint64_t{0});
  for (int value : {s.length(), s.prompt_tokens, s.window_floor, s.write_floor, s.decoder_floor,
                    kv::blocks_for(s.length())}) {
    w.put(u32(value));
  }
  w.put(static_cast<std::uint64_t>(memory_.layout.block_bytes()));
  w.put(u32(memory_.geometry.window));
  w.put(u32(id.size()));
  w.copy(id.data(), id.size());
  const auto padding = w.take(header_bytes() - w.position());
  std::fill(padding.begin(), padding.end(), std::byte{0});
  const std::uint64_t checksum = header_checksum(out.first(header_bytes()));
  std::memcpy(out.data() + kChecksumOffset, &checksum, sizeof checksum);

  w.copy(s.tokens.data(), s.tokens.size() * sizeof(TokenId));
  for (int i = 0; i < kv::blocks_for(s.length()); ++i) {
    const auto block = s.blocks[static_cast<std::size_t>(i)].bytes();
    w.copy(block.data(), block.size());
  }
  const auto width = static_cast<std::size_t>(config_.head_dim);
  const auto ring_rows =
      static_cast<std::size_t>(s.slot) * static_cast<std::size_t>(memory_.geometry.slots());
  const std::size_t row_bytes = kv::window_row_bytes(config_, memory_.layout.encoding());
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const std::size_t rows = window_rows(s.length(), floor_of(s, layer));
    for (std::size_t i = 0; i < rows; ++i) {
      const auto slot =
          static_cast<std::size_t>(memory_.geometry.slot(position_of(s.length(), rows, i)));
      write_window_row(memory_.layout.encoding(),
                       {memory_.ring(layer) + (ring_rows + slot) * width, width},
                       w.take(row_bytes));
    }
  }
  for (const kv::SourceLayout& source : memory_.layout.sources()) {
    const auto pending = static_cast<std::size_t>(s.length() % source.ratio);
    const auto places = static_cast<std::size_t>(source.ratio - 1);
    const float* carry =
        memory_.carry(source.layer).data() + static_cast<std::size_t>(s.slot) * places * 2 * width;
    w.copy(carry, pending * 2 * width * sizeof(float));
  }
  CHECK(w.position() == out.size());
}

absl::StatusOr<HandoverHeader> HandoverCodec::read_header(std::span<const std::byte> bytes) const {
  if (bytes.size() < kFixedHeaderBytes || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return corrupt("not a hand-over, or truncated");
  }
  Reader r(bytes);
  r.take(sizeof kMagic);
  const auto version = r.get<std::uint32_t>();
  const auto header_size = r.get<std::uint32_t>();
  if (header_size < kFixedHeaderBytes || header_size > kMaxHeaderBytes ||
      header_size > bytes.size()) {
    return corrupt("its header does not fit");
  }
  HandoverHeader h;
  h.total_bytes = r.get<std::uint64_t>();
  if (r.get<std::uint64_t>() != header_checksum(bytes.first(header_size))) {
    return corrupt("its header is damaged");
  }
  if (version != kVersion) {
    return absl::FailedPreconditionError(
        str_cat("KV hand-over of version ", version, ", this engine reads ", kVersion));
  }
  for (int* value : {&h.length, &h.prompt_tokens, &h.window_floor, &h.write_floor, &h.decoder_floor,
                     &h.blocks}) {
    *value = r.get_int();
  }
  h.block_bytes = r.get<std::uint64_t>();
  h.window = r.get_int();
  const auto id_bytes = r.get<std::uint32_t>();
  if (id_bytes > header_size - kFixedHeaderBytes || header_bytes_for(id_bytes) != header_size) {
    return corrupt("its layout id does not fit");
  }
  const auto id = r.take(id_bytes);
  h.layout_id.assign(reinterpret_cast<const char*>(id.data()), id.size());
  if (h.layout_id != memory_.layout.id()) {
    return absl::FailedPreconditionError(str_cat("KV hand-over with layout ", h.layout_id,
                                                 ", this engine has ", memory_.layout.id()));
  }
  RETURN_IF_ERROR(check_numbers(h, config_.max_position_embeddings));
  if (h.window != memory_.geometry.window || h.block_bytes != memory_.layout.block_bytes() ||
      h.blocks != kv::blocks_for(h.length) || h.total_bytes != bytes.size() ||
      bytes.size() != header_size + payload_bytes(h.length, h.window_floor, h.decoder_floor)) {
    return corrupt("its size contradicts its header");
  }
  return h;
}

absl::StatusOr<std::vector<TokenId>> HandoverCodec::read_tokens(
    const HandoverHeader& header, std::span<const std::byte> bytes) const {
  Reader r(bytes.subspan(header_bytes()));
  std::vector<TokenId> tokens(static_cast<std::size_t>(header.length));
  for (TokenId& token : tokens) {
    token = r.get<TokenId>();
    if (token < 0 || token >= config_.vocab_size)
      return corrupt("a token is outside the vocabulary");
  }
  return tokens;
}

void HandoverCodec::restore(std::span<const std::byte> bytes, const Sequence& s) {
  Reader r(bytes.subspan(header_bytes()));
  r.take(s.tokens.size() * sizeof(TokenId));
  for (int i = 0; i < kv::blocks_for(s.length()); ++i) {
    const auto block = s.blocks[static_cast<std::size_t>(i)].bytes();
    std::memcpy(block.data(), r.take(block.size()).data(), block.size());
  }
  const auto width = static_cast<std::size_t>(config_.head_dim);
  const auto ring_rows =
      static_cast<std::size_t>(s.slot) * static_cast<std::size_t>(memory_.geometry.slots());
  const std::size_t row_bytes = kv::window_row_bytes(config_, memory_.layout.encoding());
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const std::size_t rows = window_rows(s.length(), floor_of(s, layer));
    for (std::size_t i = 0; i < rows; ++i) {
      const auto slot =
          static_cast<std::size_t>(memory_.geometry.slot(position_of(s.length(), rows, i)));
      read_window_row(memory_.layout.encoding(), r.take(row_bytes),
                      {memory_.ring(layer) + (ring_rows + slot) * width, width});
    }
  }
  for (const kv::SourceLayout& source : memory_.layout.sources()) {
    const auto pending = static_cast<std::size_t>(s.length() % source.ratio);
    const auto places = static_cast<std::size_t>(source.ratio - 1);
    if (pending == 0) continue;
    const auto values = r.take(pending * 2 * width * sizeof(float));
    std::memcpy(
        memory_.carry(source.layer).data() + static_cast<std::size_t>(s.slot) * places * 2 * width,
        values.data(), values.size());
  }
}

}  // namespace millrace::dataplane::engine
