// millrace-storage-io-bench: what a storage target makes of its disk, of the page cache and of its
// index. Each part is measured beside what the machine itself can do, in the same run:
//
//     disk      O_DIRECT reads and writes of whole slots against fio with the same size and depth
//     cache     whole blocks read, verified and put together, against memcpy of the same bytes
//     index     records put in, memory of each, and the time of a restart
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/check.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/disk/slot_io.h"
#include "storage/ec/codec.h"
#include "storage/index/shard_index.h"
#include "storage/node/slot_table.h"
#include "storage/store/stripe.h"
#include "storage/wire/shard_format.h"
#include "tests/bench/stopwatch.h"

namespace millrace::tests::bench {
namespace {

using namespace storage;

constexpr std::size_t kBlockBytes = 113920;  // of the official model
constexpr int kDataShards = 10;
constexpr int kParityShards = 2;

struct Options {
  std::string folder = "/var/tmp";
  std::string cache_folder = "/dev/shm";
  std::vector<std::string> parts = {"disk", "cache", "index"};
  double seconds = 3;
  int depth = 32;
  int rounds = 3;
  std::uint64_t disk_bytes = std::uint64_t{1} << 30;
  std::uint64_t records = 1'000'000;
};

void print(const Json& line) { std::cout << dump_json(line) << std::endl; }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Keeps `depth` operations on random slots in flight for a while.
class SlotLoad {
 public:
  SlotLoad(const std::string& path, std::uint64_t bytes, int depth)
      : slots_(bytes / slot_bytes()), depth_(depth) {
    disk::SlotFileOptions options;
    options.path = path;
    options.bytes = slots_ * slot_bytes();
    options.backend = disk::IoBackend::kUring;
    options.queue_depth = depth + 1;
    absl::StatusOr<std::unique_ptr<disk::SlotIo>> io =
        disk::open_slot_file(options, [this](std::vector<disk::SlotCompletion> completions) {
          std::lock_guard lock(mutex_);
          for (disk::SlotCompletion& completion : completions) {
            done_.push_back(std::move(completion));
          }
          changed_.notify_one();
        });
    status_ = io.status();
    if (io.ok()) io_ = *std::move(io);
  }

  static std::uint64_t slot_bytes() { return slot_bytes_for(kBlockBytes, kDataShards); }
  const absl::Status& status() const { return status_; }

  /// Operations a second.
  double run(disk::IoKind kind, double seconds) {
    std::vector<disk::SlotOperation> idle;
    for (int i = 0; i < depth_; ++i) {
      disk::SlotOperation operation;
      operation.kind = kind;
      operation.buffer = disk::PageBuffer(slot_bytes());
      std::memset(operation.buffer.data(), i + 1, operation.buffer.size());
      idle.push_back(std::move(operation));
    }
    const Stopwatch watch(ClockKind::kWall);
    std::uint64_t completed = 0;
    int in_flight = 0;
    while (watch.seconds() < seconds || in_flight > 0) {
      if (watch.seconds() < seconds) {
        for (disk::SlotOperation& operation : idle) {
          operation.offset = random_() % slots_ * slot_bytes();
          CHECK(io_->submit(operation).ok());
          ++in_flight;
        }
        idle.clear();
        io_->flush();
      }
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !done_.empty(); });
      std::vector<disk::SlotCompletion> completions = std::exchange(done_, {});
      lock.unlock();
      for (disk::SlotCompletion& completion : completions) {
        CHECK(completion.status.ok());
        disk::SlotOperation operation;
        operation.kind = kind;
        operation.buffer = std::move(completion.buffer);
        idle.push_back(std::move(operation));
        --in_flight;
        ++completed;
      }
    }
    return static_cast<double>(completed) / watch.seconds();
  }

 private:
  const std::uint64_t slots_;
  const int depth_;
  std::mt19937_64 random_{1};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<disk::SlotCompletion> done_;  // guarded by mutex_
  absl::Status status_;
  std::unique_ptr<disk::SlotIo> io_;  // ends first: it calls back
};

/// What fio does a second with the same file, size and depth; negative when it cannot run.
double fio_rate(const std::string& path, const Options& options, std::string_view pattern) {
  const std::string output = path + ".fio.json";
  const std::string command = str_cat(
      "fio --name=slots --filename=", path, " --direct=1 --ioengine=io_uring --rw=", pattern,
      " --bs=", SlotLoad::slot_bytes(), " --iodepth=", options.depth,
      " --size=", options.disk_bytes / SlotLoad::slot_bytes() * SlotLoad::slot_bytes(),
      " --time_based --runtime=", std::ceil(options.seconds),
      " --output-format=json --output=", output, " >/dev/null 2>&1");
  if (std::system(command.c_str()) != 0) return -1;
  std::ifstream file(output);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(output);
  const absl::StatusOr<Json> report = parse_json(text, {.max_depth = 64, .max_members = 100000});
  if (!report.ok()) return -1;
  const char* direction = pattern == "randread" ? "read" : "write";
  return (*report)["jobs"][0][direction]["iops"].get<double>();
}

absl::Status measure_disk(const Options& options) {
  const std::string path = str_cat(options.folder, "/storage-io-bench.", ::getpid());
  absl::Status status;
  {
    SlotLoad load(path, options.disk_bytes, options.depth);
    RETURN_IF_ERROR(load.status());
    for (const disk::IoKind kind : {disk::IoKind::kWrite, disk::IoKind::kRead}) {
      const bool reads = kind == disk::IoKind::kRead;
      std::vector<double> ours;
      std::vector<double> theirs;
      for (int round = 0; round < options.rounds; ++round) {
        ours.push_back(load.run(kind, options.seconds));
        theirs.push_back(fio_rate(path, options, reads ? "randread" : "randwrite"));
      }
      const double slot_mb = static_cast<double>(SlotLoad::slot_bytes()) / 1e6;
      const double fio = median(theirs);
      print(Json{{"part", "disk"},
                 {"what", reads ? "read" : "write"},
                 {"slot_bytes", SlotLoad::slot_bytes()},
                 {"depth", options.depth},
                 {"ours_per_second", median(ours)},
                 {"ours_mb_per_second", median(ours) * slot_mb},
                 {"fio_per_second", fio},
                 {"ratio", fio > 0 ? median(ours) / fio : 0}});
    }
  }
  std::filesystem::remove(path);
  return status;
}

BlockKey key_of(std::uint64_t number) {
  std::mt19937_64 random(number);
  BlockKey key;
  for (std::uint8_t& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  return key;
}

/// One block of a file of sealed shards, as a node and a client read it together: each shard is
/// read, checked by the node before it leaves and by the client when it arrives, and the block is
/// put together.
void read_block(int file, const ec::Codec& codec, std::uint64_t block, const BlockKey& key,
                std::vector<std::vector<std::byte>>& shards, std::span<std::byte> landing) {
  const std::size_t slot_bytes = slot_bytes_for(kBlockBytes, kDataShards);
  // As in most reads of eleven, one data shard is late and the first parity shard stands in for it.
  const auto missing = static_cast<int>(block % (kDataShards + 1));
  store::MemberMask from = 0;
  for (int index = 0; index <= kDataShards; ++index) {
    if (index == missing) continue;
    std::vector<std::byte>& shard = shards[static_cast<std::size_t>(index)];
    const std::uint64_t slot = block * (kDataShards + kParityShards) + static_cast<unsigned>(index);
    CHECK(::pread(file, shard.data(), shard.size(), static_cast<off_t>(slot * slot_bytes)) ==
          static_cast<ssize_t>(shard.size()));
    ShardHeader header;
    for (int check = 0; check < 2; ++check) {
      CHECK(verify_shard(shard, key, static_cast<std::uint8_t>(index), 0, header) ==
            ShardDefect::kNone);
    }
    from |= store::MemberMask{1} << index;
  }
  store::open_block(codec, shards, from, landing);
}

absl::Status measure_cache(const Options& options) {
  constexpr std::uint64_t kBlocks = 512;  // 75 MB of slots: more than the caches of the processor
  const std::string path = str_cat(options.cache_folder, "/storage-io-bench.", ::getpid());
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return absl::ErrnoToStatus(errno, path);
  ::unlink(path.c_str());
  ASSIGN_OR_RETURN(const std::unique_ptr<const ec::Codec> codec,
                   ec::Codec::make(kDataShards, kParityShards));
  const std::size_t slot_bytes = slot_bytes_for(kBlockBytes, kDataShards);
  std::vector<std::byte> block(kBlockBytes);
  std::vector<BlockKey> keys;
  std::mt19937_64 random(1);
  for (std::uint64_t number = 0; number < kBlocks; ++number) {
    keys.push_back(key_of(number));
    for (std::byte& byte : block) byte = static_cast<std::byte>(random());
    ShardHeader header;
    header.key = keys.back();
    header.generation = number + 1;
    const std::vector<std::vector<std::byte>> sealed = store::seal_block(*codec, header, block);
    for (std::size_t index = 0; index < sealed.size(); ++index) {
      const std::uint64_t slot = number * sealed.size() + index;
      CHECK(::pwrite(file, sealed[index].data(), sealed[index].size(),
                     static_cast<off_t>(slot * slot_bytes)) ==
            static_cast<ssize_t>(sealed[index].size()));
    }
  }
  const std::size_t file_bytes = kBlocks * slot_bytes * (kDataShards + kParityShards);
  void* mapped = ::mmap(nullptr, file_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
  if (mapped == MAP_FAILED) return absl::ErrnoToStatus(errno, path);
  const auto* bytes = static_cast<const std::byte*>(mapped);
  std::vector<std::vector<std::byte>> shards(
      kDataShards + kParityShards,
      std::vector<std::byte>(sealed_shard_bytes(kBlockBytes, kDataShards)));
  std::vector<double> ours;
  std::vector<double> copies;
  for (int round = 0; round < 2 * options.rounds; ++round) {
    const bool is_copy = round % 2 == 0;
    const Stopwatch watch(ClockKind::kCpu);
    std::uint64_t count = 0;
    for (; watch.seconds() < options.seconds / 2; ++count) {
      const std::uint64_t number = random() % kBlocks;
      if (is_copy) {
        std::memcpy(block.data(), bytes + number * slot_bytes * (kDataShards + kParityShards),
                    kBlockBytes);
      } else {
        read_block(file, *codec, number, keys[number], shards, block);
      }
    }
    const double rate = static_cast<double>(count) * kBlockBytes / watch.seconds() / 1e9;
    (is_copy ? copies : ours).push_back(rate);
  }
  ::munmap(mapped, file_bytes);
  ::close(file);
  print(Json{{"part", "cache"},
             {"block_bytes", kBlockBytes},
             {"ours_gb_per_second", median(ours)},
             {"memcpy_gb_per_second", median(copies)},
             {"ratio", median(ours) / median(copies)}});
  return absl::OkStatus();
}

/// Resident memory of this process, in bytes.
double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0;
  double resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double folder_bytes(const std::string& folder) {
  double bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += static_cast<double>(entry.file_size());
  }
  return bytes;
}

index::TargetIdentity identity_of(const Options& options) {
  index::TargetIdentity identity;
  identity.cluster_id = "bench";
  identity.target_id = "bench";
  identity.slot_bytes = static_cast<std::uint32_t>(SlotLoad::slot_bytes());
  identity.slot_count = options.records + 1;
  return identity;
}

absl::Status fill_index(const std::string& folder, const Options& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<index::ShardIndex> shards,
                   index::open_rocks_index({.path = folder, .identity = identity_of(options)}));
  constexpr std::uint64_t kBatch = 1000;
  const Stopwatch watch(ClockKind::kWall);
  std::vector<index::IndexChange> batch;
  for (std::uint64_t number = 0; number < options.records; ++number) {
    index::ShardEntry entry;
    entry.key = key_of(number);
    entry.record.slot = number;
    entry.record.generation = number + 1;
    entry.record.state = index::ShardState::kPublished;
    entry.record.depth = static_cast<std::uint32_t>(number % 1000);
    entry.record.touch_minute = static_cast<std::uint32_t>(number / 10000);
    entry.record.shard_bytes =
        static_cast<std::uint32_t>(sealed_shard_bytes(kBlockBytes, kDataShards));
    batch.push_back(index::PutShard{entry});
    if (batch.size() < kBatch && number + 1 < options.records) continue;
    RETURN_IF_ERROR(shards->commit(batch, index::Durability::kBuffered));
    batch.clear();
  }
  print(Json{{"part", "index"},
             {"what", "fill"},
             {"records", options.records},
             {"per_second", static_cast<double>(options.records) / watch.seconds()}});
  return absl::OkStatus();
}

absl::Status restart_index(const std::string& folder, const Options& options) {
  const double before = resident_bytes();
  const Stopwatch watch(ClockKind::kWall);
  ASSIGN_OR_RETURN(const std::unique_ptr<index::ShardIndex> shards,
                   index::open_rocks_index({.path = folder, .identity = identity_of(options)}));
  const double opened = watch.seconds();
  node::SlotTable slots(identity_of(options).slot_count);
  std::uint64_t count = 0;
  RETURN_IF_ERROR(shards->for_each([&](const index::ShardEntry& entry) -> absl::Status {
    CHECK(slots.mark_used(entry.record.slot));
    ++count;
    return absl::OkStatus();
  }));
  CHECK(count == options.records);
  const double restarted = watch.seconds();
  const Stopwatch finds(ClockKind::kWall);
  constexpr int kFinds = 20000;
  std::mt19937_64 random(2);
  for (int i = 0; i < kFinds; ++i) {
    const auto found = shards->find(key_of(random() % options.records));
    CHECK(found.ok() && found->has_value());
  }
  const double found = finds.seconds();
  const double memory = resident_bytes() - before;
  print(
      Json{{"part", "index"},
           {"what", "restart"},
           {"records", options.records},
           {"open_seconds", opened},
           {"restart_seconds", restarted},
           {"find_microseconds", found / kFinds * 1e6},
           {"memory_bytes_per_record", memory / static_cast<double>(options.records)},
           {"memory_mb", memory / 1e6},
           {"disk_bytes_per_record", folder_bytes(folder) / static_cast<double>(options.records)}});
  return absl::OkStatus();
}

/// Filled by a process of its own, so that the memory of the restarted one is that of a restart.
absl::Status measure_index(const Options& options) {
  const std::string folder = str_cat(options.folder, "/storage-io-bench-index.", ::getpid());
  std::filesystem::create_directories(folder);
  std::cout.flush();
  const pid_t child = ::fork();
  if (child == 0) {
    const absl::Status filled = fill_index(folder, options);
    if (!filled.ok()) std::cerr << message_of(filled) << "\n";
    ::_exit(filled.ok() ? 0 : 1);
  }
  int exit_status = 0;
  ::waitpid(child, &exit_status, 0);
  absl::Status status = exit_status == 0 ? restart_index(folder, options)
                                         : absl::InternalError("the index could not be filled");
  std::filesystem::remove_all(folder);
  return status;
}

absl::Status run(const Options& options) {
  for (const std::string& part : options.parts) {
    if (part == "disk") RETURN_IF_ERROR(measure_disk(options));
    if (part == "cache") RETURN_IF_ERROR(measure_cache(options));
    if (part == "index") RETURN_IF_ERROR(measure_index(options));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::tests::bench

int main(int argc, char** argv) {
  millrace::tests::bench::Options options;
  CLI::App app(
      "What a storage target makes of disk, page cache and index; one JSON line a result.");
  app.add_option("--folder", options.folder, "Folder on the disk to measure")
      ->capture_default_str();
  app.add_option("--cache-folder", options.cache_folder, "Folder that lies in memory")
      ->capture_default_str();
  app.add_option("--part", options.parts, "disk, cache, index")
      ->check(CLI::IsMember({"disk", "cache", "index"}))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "Of one measurement")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Measurements, of which the median is printed")
      ->capture_default_str();
  app.add_option("--depth", options.depth, "Operations in flight")->capture_default_str();
  app.add_option("--disk-bytes", options.disk_bytes, "Size of the slot file")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--records", options.records, "Of the index")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = millrace::tests::bench::run(options);
  if (status.ok()) return 0;
  std::cerr << "millrace-storage-io-bench: " << millrace::message_of(status) << "\n";
  return 1;
}
