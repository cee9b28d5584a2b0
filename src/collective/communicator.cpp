#include "collective/communicator.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "codec/dispatch.hpp"
#include "codec/threaded.hpp"
#include "collective/call.hpp"
#include "collective/tuner.hpp"

namespace echo_comm::core {
namespace {

MessageHeader header_of(const Request& request, const Choice& choice, bool batch_invariant) {
  MessageHeader header;
  header.kind = choice.kind;
  header.dtype = request.dtype;
  header.bits = static_cast<uint8_t>(choice.format.bits);
  header.count = static_cast<uint64_t>(request.partition.count());
  header.row_length = static_cast<uint32_t>(request.partition.row_length());
  const auto flag = [](bool set, uint8_t bit) { return set ? bit : uint8_t{0}; };
  header.flags = static_cast<uint8_t>(
      flag(choice.format.rotation, MessageHeader::kRotation) |
      flag(request.feedback != nullptr, MessageHeader::kFeedback) | flag(request.average, MessageHeader::kAverage) |
      flag(batch_invariant, MessageHeader::kBatchInvariant) | flag(request.flush, MessageHeader::kFlush));
  return header;
}

void run_algorithm(Call& call, int root) {
  switch (call.header.kind) {
    case Kind::kOneShot: return one_shot(call);
    case Kind::kTwoShot: return two_shot(call);
    case Kind::kReduceScatter: return reduce_scatter(call);
    case Kind::kAllGather: return all_gather(call);
    case Kind::kBroadcast: return broadcast(call, root);
    case Kind::kBarrier: return barrier(call);
  }
}

// One rank: the own tensor is the sum, the only part and all there is to gather.
void pass_through(const Request& request) {
  const auto bytes = static_cast<std::size_t>(request.partition.count() * element_size(request.dtype));
  if (request.in != request.out && bytes > 0) std::memcpy(request.out, request.in, bytes);
}

bool is_control(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kBarrier;
}

Residuals residuals_of(const Request& request, const Choice& choice) {
  if (request.feedback == nullptr) return {};
  return choice.format.exact() ? request.feedback->residuals_of_exact_call() : request.feedback->residuals();
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Transport> transport, Settings settings)
    : transport_(std::move(transport)), settings_(std::move(settings)), workers_(settings_.threads) {}

Communicator::~Communicator() {
  if (progress_.pending() > 0) abort("the communicator was destroyed while calls were under way");
}

Choice Communicator::choose(const Wish& wish, const Table& table) const {
  return select(wish, {size(), settings_.batch_invariant, transport_->is_network()}, table);
}

void Communicator::run(const Request& request) {
  const Choice choice = choose(request.wish);
  if (progress_.pending() > 0) progress_.drain();
  execute(request, choice);
}

void Communicator::run_as(const Request& request, const TableRow& row) {
  execute(request, choose(request.wish, Table({row})));
}

bool Communicator::agree(bool& tune) {
  const Table own = std::exchange(settings_.table, {});
  const bool wanted = tune;
  const std::string shared = share_text(*this, text(wanted ? "1" : "0", own.to_text()));
  tune = shared.starts_with('1');
  settings_.table = Table::parse(std::string_view(shared).substr(1));
  begin_anew();
  return own == settings_.table && wanted == tune;
}

void Communicator::tune(std::chrono::milliseconds budget) {
  settings_.table = measure_table(*this, budget);
  begin_anew();
}

// What was sent before is not the user's: their first call is call 1.
void Communicator::begin_anew() {
  sequence_ = 1;
  transport_->begin_call(0);
  const std::lock_guard lock(record_mutex_);
  record_ = {};
}

std::shared_ptr<Ticket> Communicator::start(const Request& request) {
  // What is wrong with the arguments is said at once; a communicator that failed (or a forked child's) starts no thread.
  const Choice choice = choose(request.wish);
  transport_->check();
  return progress_.start([this, request, choice] { execute(request, choice); });
}

void Communicator::execute(const Request& request, const Choice& choice) {
  transport_->check();
  if (request.feedback != nullptr) request.feedback->join_pass(request.partition, choice.format.rotation);
  Counters now;
  if (size() == 1) {
    pass_through(request);
    now.passed_calls = is_control(request.wish.collective) ? 0 : 1;
  } else {
    carry_out(request, choice, now);
  }
  now.control_calls = is_control(request.wish.collective) ? 1 : 0;
  now.flush_calls = request.flush ? 1 : 0;
  now.logical_bytes = static_cast<uint64_t>(request.partition.count() * element_size(request.dtype));
  if (request.flush && request.feedback != nullptr) request.feedback->reset();
  ++sequence_;

  const std::lock_guard lock(record_mutex_);
  record_.counters += now;
  record_.waits = transport_->wait_stats();
  if (is_control(request.wish.collective)) return;
  record_.last = choice;
  if (choice.path == Path::kForward) record_.last->path = Path::kExact;
}

// Everything that can be wrong with this rank's arguments is found before the transport is touched.
void Communicator::carry_out(const Request& request, const Choice& choice, Counters& counters) {
  MessageHeader header = header_of(request, choice, settings_.batch_invariant);
  header.sequence = sequence_;
  header.rank = static_cast<uint16_t>(rank());
  const int64_t room = static_cast<int64_t>(transport_->max_message()) - kHeaderBytes;
  const ThreadedCodec codec(active_codec(), workers_);
  Call call{.transport = *transport_,
            .codec = codec,
            .partition = request.partition,
            .format = choice.format,
            .dtype = request.dtype,
            .in = static_cast<const std::byte*>(request.in),
            .out = static_cast<std::byte*>(request.out),
            .residuals = residuals_of(request, choice),
            .header = header,
            .batch_invariant = settings_.batch_invariant,
            .divisor = request.average ? size() : 1,
            .segment_groups = std::min(choice.segment_groups, groups_that_fit(room, choice.format, request.dtype)),
            .depth = choice.depth,
            .deadline = Deadline::in(settings_.timeout),
            .counters = counters};
  try {
    transport_->begin_call(sequence_);
    run_algorithm(call, request.root);
  } catch (const Error& error) {
    transport_->fail(error);
    throw;
  } catch (const std::exception& error) {
    transport_->fail(Error(ErrorCode::kInternal, error.what()));
    throw;
  }
  if (is_control(request.wish.collective)) return;
  const bool exact = choice.format.exact();
  counters.exact_calls = exact ? 1 : 0;
  counters.coded_calls = exact ? 0 : 1;
  counters.table_exact_calls = exact && !request.wish.bits_given ? 1 : 0;
  counters.one_shot_calls = choice.kind == Kind::kOneShot ? 1 : 0;
}

void Communicator::abort(const std::string& reason) noexcept { transport_->fail(Error(ErrorCode::kAborted, reason)); }

Counters Communicator::counters() const {
  const std::lock_guard lock(record_mutex_);
  return record_.counters;
}

WaitStats Communicator::wait_stats() const {
  const std::lock_guard lock(record_mutex_);
  return record_.waits;
}

std::optional<Choice> Communicator::last_choice() const {
  const std::lock_guard lock(record_mutex_);
  return record_.last;
}

}  // namespace echo_comm::core
