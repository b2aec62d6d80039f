// What engines read of an arena whose owner is killed at a random instant, or uses a slot anew
// while they copy.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "common/str_cat.h"
#include "storage/fetch/arena.h"

namespace millrace::storage::fetch {
namespace {

constexpr std::uint32_t kBlockBytes = 60000;
constexpr std::uint32_t kSlots = 8;

/// Every use of every slot has a block of its own.
BlockKey key_of(const SlotRef& ref) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &ref.generation, sizeof(ref.generation));
  std::memcpy(key.bytes.data() + 8, &ref.slot, sizeof(ref.slot));
  return key;
}

std::uint64_t word_of(const SlotRef& ref, std::size_t index) {
  return ref.generation * 0x9E3779B97F4A7C15u + ref.slot * 0xC2B2AE3D27D4EB4Fu + index;
}

void write_block(const SlotRef& ref, std::span<std::byte> out) {
  for (std::size_t i = 0; i < out.size() / 8; ++i) {
    const std::uint64_t word = word_of(ref, i);
    std::memcpy(out.data() + i * 8, &word, sizeof(word));
  }
}

bool is_block(const SlotRef& ref, std::span<const std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size() / 8; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * 8, sizeof(word));
    if (word != word_of(ref, i)) return false;
  }
  return true;
}

/// An owner in a process of its own, which uses slots over and over until it is killed.
class OwnerProcess {
 public:
  explicit OwnerProcess(const ArenaShape& shape) {
    int pipes[2];
    EXPECT_EQ(::pipe(pipes), 0);
    child_ = ::fork();
    if (child_ == 0) run(shape, pipes[1]);
    ::close(pipes[1]);
    char ready = 0;
    EXPECT_EQ(::read(pipes[0], &ready, 1), 1);
    ::close(pipes[0]);
  }
  ~OwnerProcess() { kill(); }

  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  [[noreturn]] static void run(const ArenaShape& shape, int ready) {
    auto arena = Arena::create(shape);
    if (!arena.ok() || ::write(ready, "r", 1) != 1) ::_exit(1);
    for (std::uint64_t generation = 1;; ++generation) {
      for (std::uint32_t slot = 0; slot < shape.slot_count; ++slot) {
        const SlotRef ref{slot, generation};
        arena->begin(ref, SlotState::kFilling);
        write_block(ref, arena->data(ref, shape.block_bytes));
        arena->publish(ref, key_of(ref), shape.block_bytes);
        if (slot % 2 == 0) arena->retire(ref);
      }
    }
  }

  pid_t child_ = -1;
};

/// What the table says of a slot now, whatever its state: an engine may know it by a lease that is
/// long over.
std::uint64_t current_word(std::span<const std::byte> region, std::uint32_t slot) {
  std::uint64_t word = 0;
  std::memcpy(&word, region.data() + kArenaPageBytes + slot * kArenaEntryBytes, sizeof(word));
  return word;
}
SlotRef current_use(std::span<const std::byte> region, std::uint32_t slot) {
  return {slot, current_word(region, slot) >> 8};
}

/// Waits until the last slot was published for the first time: then three odd slots at least are
/// ready at every instant. False after a long time.
bool await_first_round(std::span<const std::byte> region) {
  constexpr std::uint64_t kFirstUseReady = 1 << 8 | static_cast<std::uint64_t>(SlotState::kReady);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (current_word(region, kSlots - 1) < kFirstUseReady) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

class ArenaUnderUse : public ::testing::Test {
 protected:
  ArenaShape shape(std::uint64_t incarnation) const {
    return {.host_id = str_cat("arena-crash-", ::getpid()),
            .kind = ArenaKind::kRead,
            .incarnation = incarnation,
            .slot_count = kSlots,
            .block_bytes = kBlockBytes};
  }
  ArenaTicket ticket(std::uint64_t incarnation) const {
    return {.shm_name =
                str_cat("millrace-", shape(incarnation).host_id, "++kvfetch+read-", incarnation),
            .bytes = 4096 + 4096 + kSlots * 61440,
            .incarnation = incarnation};
  }
  ~ArenaUnderUse() override {
    remove_shared_regions(str_cat("millrace-", shape(0).host_id, "++kvfetch+"));
  }

  /// Copies what the slot held when it was looked at. Counts; fails for wrong bytes.
  void copy_once(const ArenaReader& reader, const SlotRef& ref) {
    std::vector<std::byte> out(kBlockBytes);
    const absl::Status status = reader.copy_out(ref, key_of(ref), out);
    if (!status.ok()) {
      ++refused_;
      EXPECT_NE(status.code(), absl::StatusCode::kInvalidArgument) << status;
      return;
    }
    ++copied_;
    EXPECT_TRUE(is_block(ref, out)) << "slot " << ref.slot << " generation " << ref.generation;
  }

  int copied_ = 0;
  int refused_ = 0;
};

TEST_F(ArenaUnderUse, AKilledOwnerLeavesNoHalfReadySlot) {
  constexpr int kKills = 250;
  std::mt19937_64 random(20261130);
  for (int kill = 0; kill < kKills; ++kill) {
    OwnerProcess owner(shape(static_cast<std::uint64_t>(kill)));
    const auto reader = ArenaReader::open(ticket(static_cast<std::uint64_t>(kill)));
    const auto region =
        SharedRegion::open(ticket(static_cast<std::uint64_t>(kill)).shm_name, ticket(0).bytes);
    ASSERT_TRUE(reader.ok()) << reader.status();
    ASSERT_TRUE(region.ok()) << region.status();
    // Half of the owners may die in their first round, half of them later, however slow they are.
    if (kill % 2 == 0) {
      ASSERT_TRUE(await_first_round(region->bytes()));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
    owner.kill();
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      const SlotRef now = current_use(region->bytes(), slot);
      copy_once(*reader, now);
      if (now.generation > 0) copy_once(*reader, {slot, now.generation - 1});
      copy_once(*reader, {slot, now.generation + 1});
    }
    remove_shared_regions(str_cat("millrace-", shape(0).host_id, "++kvfetch+"));
  }
  RecordProperty("copied", copied_);
  RecordProperty("refused", refused_);
  // Three odd slots are ready in each owner that had gone round.
  EXPECT_GT(copied_, kKills);
  EXPECT_GT(refused_, kKills);
}

TEST_F(ArenaUnderUse, ASlotUsedAnewDuringACopyIsRefused) {
  OwnerProcess owner(shape(1));
  const auto reader = ArenaReader::open(ticket(1));
  const auto region = SharedRegion::open(ticket(1).shm_name, ticket(1).bytes);
  ASSERT_TRUE(reader.ok() && region.ok());
  std::mt19937_64 random(7);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < end) {
    const SlotRef ref = current_use(region->bytes(), static_cast<std::uint32_t>(random() % kSlots));
    if (ref.generation > 0) copy_once(*reader, ref);
  }
  owner.kill();
  RecordProperty("copied", copied_);
  RecordProperty("refused", refused_);
  EXPECT_GT(copied_, 0);
  EXPECT_GT(refused_, 0);
}

}  // namespace
}  // namespace millrace::storage::fetch
