#include "tests/sim/storage/simulated_client.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"

namespace millrace::storage::sim {
namespace {

constexpr std::byte kPoison{0xa5};

}  // namespace

SimulatedClient::SimulatedClient(ClientSurroundings& surroundings, std::size_t number)
    : surroundings_(surroundings), number_(number) {}

void SimulatedClient::start() {
  ++life_;
  clock_offset_ = std::chrono::seconds(surroundings_.random() % 10'000'000);
  core_ = std::make_unique<store::StoreCore>(surroundings_.settings, surroundings_.random());
  timer_at_ = TimePoint::max();
}

void SimulatedClient::crash() {
  ++life_;
  core_.reset();
  reads_.clear();
  writes_.clear();
  queries_.clear();
}

void SimulatedClient::write(NewBlock block, std::chrono::nanoseconds timeout, WriteDone done) {
  const store::OperationId id = ++surroundings_.last_operation;
  const TimePoint deadline = clock() + timeout;
  surroundings_.oracle.on_write(id, block.key, block.bytes);
  writes_[id] = {deadline, std::move(done)};
  feed(store::StartWrite{.id = id,
                         .key = block.key,
                         .block = std::move(block.bytes),
                         .depth = block.depth,
                         .ttl = block.ttl,
                         .deadline = deadline});
}

void SimulatedClient::read(const BlockKey& key, std::chrono::nanoseconds timeout,
                           std::span<std::byte> landing, ReadDone done) {
  const store::OperationId id = ++surroundings_.last_operation;
  const TimePoint deadline = clock() + timeout;
  reads_[id] = {key, deadline, landing, std::move(done)};
  feed(store::StartRead{.id = id, .key = key, .landing = landing, .deadline = deadline});
}

void SimulatedClient::read_into_landing(const BlockKey& key, std::size_t bytes,
                                        std::chrono::nanoseconds timeout) {
  landings_.push_back(std::make_unique<std::vector<std::byte>>(bytes, kPoison));
  std::vector<std::byte>* const landing = landings_.back().get();
  read(key, timeout, *landing, [landing](const store::ReadResult&) {
    std::fill(landing->begin(), landing->end(), kPoison);
  });
}

void SimulatedClient::query(std::vector<BlockKey> keys, std::chrono::milliseconds lease,
                            std::chrono::nanoseconds timeout, QueryDone done) {
  const store::OperationId id = ++surroundings_.last_operation;
  const TimePoint deadline = clock() + timeout;
  queries_[id] = {keys.size(), deadline, std::move(done)};
  feed(store::StartQuery{.id = id, .keys = std::move(keys), .lease = lease, .deadline = deadline});
}

void SimulatedClient::touch(std::vector<BlockKey> keys, TtlClass ttl) {
  feed(store::TouchBlocks{std::move(keys), ttl});
}

void SimulatedClient::on_answer(std::uint64_t life, store::RequestId id, ShardReply reply) {
  if (life == life_) feed(store::ShardAnswered{id, std::move(reply)});
}

void SimulatedClient::feed(store::StoreEvent event) {
  store::StoreActions actions = core_->on_event(std::move(event), clock());
  for (store::SendShard& send : actions.sends) {
    note_sent(send.request.operation);
    surroundings_.send(number_, life_, std::move(send));
  }
  if (!actions.maps.empty()) surroundings_.want_map(number_);
  want_timer();
  for (store::FinishRead& finished : actions.reads) finish(finished);
  for (const store::FinishWrite& finished : actions.writes) finish(finished);
  for (const store::FinishQuery& finished : actions.queries) finish(finished);
}

void SimulatedClient::note_sent(const ShardOperation& operation) {
  if (const auto* write = std::get_if<WriteShard>(&operation)) {
    surroundings_.oracle.on_shard_sent(write->shard);
  } else if (const auto* publish = std::get_if<PublishShard>(&operation)) {
    surroundings_.oracle.on_publication_sent(publish->key, publish->generation);
  }
}

void SimulatedClient::want_timer() {
  const auto timer = core_->next_timer();
  if (!timer) return;
  const TimePoint at = std::max(*timer - clock_offset_, surroundings_.loop.now());
  if (at >= timer_at_) return;
  timer_at_ = at;
  surroundings_.loop.post(at - surroundings_.loop.now(), [this, life = life_, at] {
    if (life != life_ || at != timer_at_) return;
    timer_at_ = TimePoint::max();
    feed(store::TimerDue{});
  });
}

void SimulatedClient::check_in_time(TimePoint deadline) {
  if (clock() > deadline) surroundings_.oracle.fail("an operation finishes after its deadline");
}

void SimulatedClient::finish(store::FinishRead& finished) {
  const auto found = reads_.find(finished.id);
  if (found == reads_.end()) return surroundings_.oracle.fail("a read finishes twice");
  const Read read = std::move(found->second);
  reads_.erase(found);
  check_in_time(read.deadline);
  if (finished.result.is_hit())
    surroundings_.oracle.on_read_hit(
        read.key, finished.result.generation,
        read.landing.empty() ? std::span<const std::byte>(finished.result.block) : read.landing);
  if (read.done) read.done(finished.result);
}

void SimulatedClient::finish(const store::FinishWrite& finished) {
  const auto found = writes_.find(finished.id);
  if (found == writes_.end()) return surroundings_.oracle.fail("a write finishes twice");
  const Write write = std::move(found->second);
  writes_.erase(found);
  check_in_time(write.deadline);
  surroundings_.oracle.on_write_finished(finished.id, finished.outcome, surroundings_.loop.now());
  if (write.done) write.done(finished.outcome);
}

void SimulatedClient::finish(const store::FinishQuery& finished) {
  const auto found = queries_.find(finished.id);
  if (found == queries_.end()) return surroundings_.oracle.fail("a query finishes twice");
  const Query query = std::move(found->second);
  queries_.erase(found);
  check_in_time(query.deadline);
  if (finished.present.size() != query.keys)
    surroundings_.oracle.fail("a query has not one answer for each key");
  if (query.done) query.done(finished.present);
}

bool SimulatedClient::is_idle() const {
  const store::StoreCounters& counters = core_->counters();
  return reads_.empty() && writes_.empty() && queries_.empty() &&
         counters.read_bytes_in_flight == 0 && counters.write_bytes_in_flight == 0;
}

void SimulatedClient::check_leaks() const {
  const store::StoreCounters& counters = core_->counters();
  const auto check = [&](std::uint64_t value, const char* what) {
    if (value != 0)
      surroundings_.oracle.fail(str_cat("client ", number_, " at rest has ", value, " ", what));
  };
  check(reads_.size() + writes_.size() + queries_.size(), "operations that have not finished");
  check(counters.read_bytes_in_flight, "bytes of reads in flight");
  check(counters.late_bytes_in_flight, "bytes of late answers in flight");
  check(counters.write_bytes_in_flight, "bytes of writes in flight");
  check(counters.waiting_reads, "reads that wait");
  for (const auto& landing : landings_)
    if (std::any_of(landing->begin(), landing->end(), [](std::byte b) { return b != kPoison; }))
      surroundings_.oracle.fail("a landing is written to after its read has finished");
}

}  // namespace millrace::storage::sim
