#include "storage/disk/slot_io.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "common/str_cat.h"
#include "storage/disk/usrbio_double.h"

namespace millrace::storage::disk {
namespace {

constexpr std::size_t kPage = 4096;

/// Collects completions for a test that waits.
class Completions {
 public:
  CompletionSink sink() {
    return [this](std::vector<SlotCompletion> batch) {
      std::lock_guard lock(mutex_);
      for (SlotCompletion& completion : batch) {
        ++times_[completion.id];
        done_[completion.id] = std::move(completion);
      }
      changed_.notify_all();
    };
  }

  SlotCompletion wait(std::uint64_t id) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(30), [&] { return done_.count(id) > 0; }));
    SlotCompletion completion = std::move(done_[id]);
    done_.erase(id);
    return completion;
  }

  std::map<std::uint64_t, int> times() {
    std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, SlotCompletion> done_;
  std::map<std::uint64_t, int> times_;
};

SlotOperation operation(std::uint64_t id, IoKind kind, std::uint64_t offset, std::size_t bytes,
                        std::uint8_t fill = 0) {
  SlotOperation made;
  made.id = id;
  made.kind = kind;
  made.offset = offset;
  if (kind == IoKind::kSync) return made;
  made.buffer = PageBuffer(bytes);
  std::memset(made.buffer.data(), fill, made.buffer.size());
  return made;
}

bool is_filled_with(const PageBuffer& buffer, std::uint8_t fill) {
  for (const std::byte byte : buffer.bytes())
    if (byte != std::byte{fill}) return false;
  return true;
}

class SlotIoContract : public testing::TestWithParam<IoBackend> {
 protected:
  void SetUp() override {
    folder_ = str_cat(testing::TempDir(), "slot_io_", ::getpid(), "/", kUsrbioDoubleMount);
    std::filesystem::create_directories(folder_);
    options_ = {
        .path = folder_ + "/slots", .bytes = 64 * kPage, .backend = GetParam(), .queue_depth = 8};
    options_.usrbio_library = USRBIO_DOUBLE;
    auto opened = open_slot_file(options_, completions_.sink());
    if (GetParam() == IoBackend::kUring &&
        opened.status().code() == absl::StatusCode::kUnavailable) {
      std::filesystem::remove_all(folder_);
      GTEST_SKIP() << "not on this machine: " << message_of(opened.status());
    }
    ASSERT_TRUE(opened.ok()) << opened.status();
    io_ = std::move(*opened);
  }

  void TearDown() override {
    io_.reset();
    std::filesystem::remove_all(folder_);
  }

  SlotCompletion run(SlotOperation made) {
    const std::uint64_t id = made.id;
    EXPECT_TRUE(io_->submit(made).ok());
    io_->flush();
    return completions_.wait(id);
  }

  std::string folder_;
  SlotFileOptions options_;
  Completions completions_;  // outlives the I/O
  std::unique_ptr<SlotIo> io_;
};

TEST_P(SlotIoContract, ReadsWhatWasWrittenAlsoAfterItWasOpenedAgain) {
  EXPECT_EQ(io_->size_bytes(), 64 * kPage);
  EXPECT_TRUE(run(operation(1, IoKind::kWrite, 3 * kPage, 2 * kPage, 0xab)).status.ok());
  EXPECT_TRUE(run(operation(2, IoKind::kSync, 0, 0)).status.ok());
  SlotCompletion read = run(operation(3, IoKind::kRead, 3 * kPage, 2 * kPage));
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_TRUE(is_filled_with(read.buffer, 0xab));

  io_.reset();
  auto again = open_slot_file(options_, completions_.sink());
  ASSERT_TRUE(again.ok()) << again.status();
  io_ = std::move(*again);
  read = run(operation(4, IoKind::kRead, 3 * kPage, 2 * kPage));
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_TRUE(is_filled_with(read.buffer, 0xab));
}

TEST_P(SlotIoContract, ANewFileIsAllocatedAndReadsAsZeros) {
  struct stat info {};
  ASSERT_EQ(::stat(options_.path.c_str(), &info), 0);
  EXPECT_GE(static_cast<std::uint64_t>(info.st_blocks) * 512, options_.bytes);
  const SlotCompletion read = run(operation(1, IoKind::kRead, 63 * kPage, kPage, 0xff));
  if (GetParam() == IoBackend::kUsrbio) {  // where that would be a hole, and holes are errors
    EXPECT_EQ(read.status.code(), absl::StatusCode::kDataLoss);
    return;
  }
  ASSERT_TRUE(read.status.ok());
  EXPECT_TRUE(is_filled_with(read.buffer, 0));
}

TEST_P(SlotIoContract, AReadBeyondTheEndIsDataLossAndNotAGoodAnswer) {
  const SlotCompletion read = run(operation(1, IoKind::kRead, 63 * kPage, 2 * kPage));
  EXPECT_EQ(read.status.code(), absl::StatusCode::kDataLoss) << read.status;
  EXPECT_EQ(read.buffer.size(), 2 * kPage);
}

TEST_P(SlotIoContract, EverythingSubmittedCompletesExactlyOnceAndDestructionWaits) {
  std::mt19937_64 random(7);
  std::uint64_t id = 0;
  for (int i = 0; i < 500; ++i) {
    SlotOperation made = operation(++id, i % 3 == 0 ? IoKind::kRead : IoKind::kWrite,
                                   (random() % 64) * kPage, kPage, static_cast<std::uint8_t>(i));
    while (!io_->submit(made).ok()) {
      ASSERT_EQ(made.buffer.size(), kPage) << "a refused operation keeps its buffer";
      io_->flush();
      std::this_thread::yield();
    }
    if (i % 5 == 0) io_->flush();
  }
  io_.reset();
  const std::map<std::uint64_t, int> times = completions_.times();
  EXPECT_EQ(times.size(), 500U);
  for (const auto& [seen, count] : times) EXPECT_EQ(count, 1) << seen;
}

TEST_P(SlotIoContract, RefusesMoreThanItsDepth) {
  std::vector<SlotOperation> operations;
  operations.reserve(200);
  for (std::uint64_t id = 1; id <= 200; ++id)
    operations.push_back(operation(id, IoKind::kWrite, 0, 64 * kPage, 1));
  int refused = 0;
  for (SlotOperation& made : operations) {
    const absl::Status status = io_->submit(made);
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    ++refused;
    break;
  }
  EXPECT_EQ(refused, 1);
}

TEST_P(SlotIoContract, ASecondOpenerIsRefusedByName) {
  Completions others;
  const auto second = open_slot_file(options_, others.sink());
  ASSERT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
  EXPECT_NE(second.status().message().find(options_.path), absl::string_view::npos);
}

TEST_P(SlotIoContract, NoRoomIsNamedAndLeavesNothingBehind) {
  SlotFileOptions huge = options_;
  huge.path = folder_ + "/huge";
  huge.bytes = std::uint64_t{1} << 50;
  const auto opened = open_slot_file(huge, completions_.sink());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kResourceExhausted) << opened.status();
  EXPECT_FALSE(std::filesystem::exists(huge.path));
  EXPECT_FALSE(std::filesystem::exists(huge.path + ".making"));
}

TEST_P(SlotIoContract, AnUnfinishedFileIsMadeAnew) {
  SlotFileOptions other = options_;
  other.path = folder_ + "/other";
  std::ofstream(other.path + ".making") << "cut off by a crash";
  const auto opened = open_slot_file(other, completions_.sink());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->size_bytes(), other.bytes);
  EXPECT_FALSE(std::filesystem::exists(other.path + ".making"));
}

TEST_P(SlotIoContract, AFolderThatIsNotThereIsNamed) {
  SlotFileOptions other = options_;
  other.path = folder_ + "/nowhere/slots";
  const auto opened = open_slot_file(other, completions_.sink());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kNotFound) << opened.status();
  EXPECT_NE(opened.status().message().find(other.path), absl::string_view::npos);
}

INSTANTIATE_TEST_SUITE_P(Backends, SlotIoContract,
                         testing::Values(IoBackend::kPlain, IoBackend::kUring, IoBackend::kAuto,
                                         IoBackend::kUsrbio),
                         [](const testing::TestParamInfo<IoBackend>& backend) {
                           switch (backend.param) {
                             case IoBackend::kPlain:
                               return "Plain";
                             case IoBackend::kUring:
                               return "Uring";
                             case IoBackend::kUsrbio:
                               return "Usrbio";
                             case IoBackend::kAuto:
                               break;
                           }
                           return "Auto";
                         });

class Usrbio : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = str_cat(testing::TempDir(), "usrbio_", ::getpid(), "/", kUsrbioDoubleMount);
    std::filesystem::create_directories(folder_);
    options_ = {.path = folder_ + "/lane",
                .bytes = 64 * kPage,
                .backend = IoBackend::kUsrbio,
                .queue_depth = 8,
                .usrbio_library = USRBIO_DOUBLE,
                .dead_after = std::chrono::milliseconds(300)};
    void* const library = ::dlopen(USRBIO_DOUBLE, RTLD_NOW);
    ASSERT_NE(library, nullptr) << ::dlerror();
    freeze_ = reinterpret_cast<UsrbioDoubleFreeze>(::dlsym(library, kUsrbioDoubleFreezeName));
    ASSERT_NE(freeze_, nullptr);
  }
  void TearDown() override {
    freeze_(0);
    std::filesystem::remove_all(folder_);
  }

  std::string folder_;
  SlotFileOptions options_;
  UsrbioDoubleFreeze freeze_ = nullptr;
};

TEST_F(Usrbio, AMissingLibraryAndAnotherFileSystemAreNamed) {
  SlotFileOptions other = options_;
  other.usrbio_library = "libhf3fs_that_is_not_there.so";
  auto opened = open_slot_file(other, [](const std::vector<SlotCompletion>&) {});
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(opened.status().message().find(other.usrbio_library), absl::string_view::npos);
  other = options_;
  other.path = testing::TempDir() + "elsewhere";
  opened = open_slot_file(other, [](const std::vector<SlotCompletion>&) {});
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(opened.status().message().find("not on a 3FS mount"), absl::string_view::npos);
}

TEST_F(Usrbio, AHoleIsAnErrorAndNotZeros) {
  std::ofstream(options_.path).close();
  std::filesystem::resize_file(options_.path, options_.bytes);  // all of it is a hole
  Completions completions;
  const auto io = open_slot_file(options_, completions.sink()).value();
  SlotOperation read = operation(1, IoKind::kRead, 0, kPage);
  ASSERT_TRUE(io->submit(read).ok());
  io->flush();
  EXPECT_EQ(completions.wait(1).status.code(), absl::StatusCode::kDataLoss);
}

TEST_F(Usrbio, ADaemonThatEndsNothingIsGivenUpAndItsMemoryIsLeftAlone) {
  Completions completions;
  auto io = open_slot_file(options_, completions.sink()).value();
  freeze_(1);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    SlotOperation read = operation(id, IoKind::kRead, id * kPage, kPage);
    ASSERT_TRUE(io->submit(read).ok());
  }
  io->flush();
  for (std::uint64_t id = 1; id <= 4; ++id)
    EXPECT_EQ(completions.wait(id).status.code(), absl::StatusCode::kUnavailable) << id;
  freeze_(0);  // it was not dead after all, and writes into what it was given
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (std::uint64_t id = 11; id <= 30; ++id) {
    SlotOperation late = operation(id, IoKind::kWrite, 0, kPage);
    ASSERT_TRUE(io->submit(late).ok());
    EXPECT_EQ(completions.wait(id).status.code(), absl::StatusCode::kUnavailable) << id;
  }
  io.reset();
  for (const auto& [id, count] : completions.times()) EXPECT_EQ(count, 1) << id;
}

TEST(SlotFile, ARequestOfHalfAPageIsRefused) {
  const auto opened = open_slot_file(
      {.path = testing::TempDir() + "half", .bytes = kPage + 1, .backend = IoBackend::kPlain},
      [](const std::vector<SlotCompletion>&) {});
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::storage::disk
