#include "transport/mailbox/mailbox.hpp"

#include <algorithm>
#include <bit>

#include "transport/mailbox/duration.hpp"

namespace echo_comm::core {
namespace {

using Clock = Deadline::Clock;

// Longest sleep between two looks at the peers' lives.
constexpr std::chrono::milliseconds kLifeCheck{100};
// A message of a peer that runs on its own core arrives within this; a sleep and a wake-up would cost about as much.
constexpr std::chrono::microseconds kSpinOnOwnCore{20};
// When ranks share cores, spinning takes the core from the rank that is waited for.
constexpr std::chrono::microseconds kSpinOnSharedCore{1};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Call 0 is the time before the first one.
std::string in_call(const char* preposition, uint64_t call) {
  return call == 0 ? "before its first call" : text(preposition, " call ", call);
}

}  // namespace

// ---- life ------------------------------------------------------------------------------------------------------

Mailbox::Mailbox(Region region, int rank, const char* name, std::shared_ptr<const Backing> backing)
    : region_(region),
      backing_(std::move(backing)),
      rank_(rank),
      name_(name),
      sending_(static_cast<std::size_t>(region.size()) + 1),
      received_(2 * static_cast<std::size_t>(region.size())) {}

Mailbox::~Mailbox() {
  if (fork_guard_.in_child()) return;  // the rank lives on in the parent
  region_.control(rank_).left.store(1, std::memory_order_seq_cst);
  for (int r = 0; r < size(); ++r) region_.control(r).doorbell.ring();
}

void Mailbox::require_usable() const {
  if (fork_guard_.in_child() || region_.header().failure.published() || raised_) check();
}

void Mailbox::begin_call(uint64_t sequence) noexcept {
  if (fork_guard_.in_child()) return;
  region_.control(rank_).call.store(sequence, std::memory_order_relaxed);
}

// ---- the four verbs --------------------------------------------------------------------------------------------

Mailbox::Sending& Mailbox::sending(int to) {
  require(to == kEveryone || (to >= 0 && to < size() && to != rank_), ErrorCode::kInternal, name_, ": rank ", rank_,
          " cannot send to rank ", to, " of ", size());
  return sending_[static_cast<std::size_t>(to == kEveryone ? size() : to)];
}

uint64_t& Mailbox::received(int from, Route route) {
  require(from >= 0 && from < size() && from != rank_, ErrorCode::kInternal, name_, ": rank ", rank_,
          " cannot receive from rank ", from, " of ", size());
  return received_[static_cast<std::size_t>(route == Route::kPair ? from : size() + from)];
}

std::span<std::byte> Mailbox::acquire(int to, const Deadline& deadline) {
  require_usable();
  Sending& state = sending(to);
  if (state.sent >= kSlots) {
    const uint64_t goal = state.sent - kSlots + 1;
    const int first = to == kEveryone ? 0 : to;
    const int last = to == kEveryone ? size() - 1 : to;
    for (int reader = first; reader <= last; ++reader) {
      if (reader == rank_) continue;
      wait({reader, to, true, {&region_.consumed(rank_, to, reader).count, goal}}, deadline);
    }
  }
  state.acquired = true;
  return {region_.slot(rank_, to, state.sent), max_message()};
}

void Mailbox::commit(int to, std::size_t bytes) {
  require_usable();
  Sending& state = sending(to);
  require(state.acquired && bytes <= max_message(), ErrorCode::kInternal, name_, ": commit of ", bytes,
          " bytes without room for them; slots have ", max_message());
  Produced& produced = region_.produced(rank_, to);
  produced.length[state.sent % kSlots] = bytes;
  state.acquired = false;
  produced.count.store(++state.sent, std::memory_order_seq_cst);
  if (to != kEveryone) return region_.control(to).doorbell.ring();
  for (int r = 0; r < size(); ++r) {
    if (r != rank_) region_.control(r).doorbell.ring();
  }
}

Mailbox::Goal Mailbox::next_message(int from, Route route) {
  const int to = route == Route::kPair ? rank_ : kEveryone;
  return {&region_.produced(from, to).count, received(from, route) + 1};
}

Route Mailbox::arrival(int from, Route preferred, const Deadline& deadline) {
  require_usable();
  const Route other = preferred == Route::kPair ? Route::kEveryone : Route::kPair;
  const Goal goal = next_message(from, preferred);
  wait({from, rank_, false, goal, next_message(from, other)}, deadline);
  // The preferred route is looked at after the wait: a message there that was sent before the one on the other route
  // is visible once that one is (both counters are stored with release order by the same sender).
  return goal.reached() ? preferred : other;
}

std::span<const std::byte> Mailbox::receive(int from, Route route, const Deadline& deadline) {
  require_usable();
  const uint64_t message = received(from, route);
  const int to = route == Route::kPair ? rank_ : kEveryone;
  const Produced& produced = region_.produced(from, to);
  wait({from, to, false, next_message(from, route)}, deadline);
  const uint64_t bytes = produced.length[message % kSlots];
  if (bytes > max_message()) {
    raise(Error(ErrorCode::kInternal, text(name_, ": rank ", from, " sent a message of ", bytes, " bytes, slots have ",
                                           max_message(), "; the shared memory was overwritten")));
  }
  return {region_.slot(from, to, message), bytes};
}

void Mailbox::release(int from, Route route) {
  require_usable();
  uint64_t& message = received(from, route);
  const int to = route == Route::kPair ? rank_ : kEveryone;
  require(region_.produced(from, to).count.load(std::memory_order_relaxed) > message, ErrorCode::kInternal, name_,
          ": release without a message from rank ", from);
  region_.consumed(from, to, rank_).count.store(++message, std::memory_order_seq_cst);
  region_.control(from).doorbell.ring();
}

// ---- failure ---------------------------------------------------------------------------------------------------

void Mailbox::fail(const Error& error) noexcept {
  if (fork_guard_.in_child()) return;
  if (!region_.header().failure.record(error, rank_)) return;
  for (int r = 0; r < size(); ++r) region_.control(r).doorbell.ring();
}

void Mailbox::check() const {
  require(!fork_guard_.in_child(), ErrorCode::kState, name_,
          ": the communicator was used after fork; a child process must create its own");
  if (auto failure = region_.header().failure.read(rank_)) throw std::move(*failure);
  if (raised_) throw *raised_;
}

// Another rank's failure may have come first; then that is the one to report, unless it is still being written.
void Mailbox::raise(const Error& error) {
  fail(error);
  raised_ = error;
  check();
  throw error;
}

// ---- waiting ---------------------------------------------------------------------------------------------------

void Mailbox::wait(const Awaited& awaited, const Deadline& deadline) {
  if (awaited.reached()) return;
  const auto begin = Clock::now();
  ++stats_.waits;
  try {
    if (!spin(awaited)) sleep_until(awaited, deadline);
  } catch (...) {
    stats_.wait_ns += static_cast<uint64_t>((Clock::now() - begin).count());
    throw;
  }
  stats_.wait_ns += static_cast<uint64_t>((Clock::now() - begin).count());
}

// All ranks announced themselves before the first of them can wait.
bool Mailbox::cores_for_all() const {
  int cores = 0;
  for (std::size_t word = 0; word < CoreSet{}.size(); ++word) {
    uint64_t any = 0;
    for (int r = 0; r < size(); ++r) any |= region_.control(r).cores[word];
    cores += std::popcount(any);
  }
  return cores >= size();
}

bool Mailbox::spin(const Awaited& awaited) {
  if (spin_time_.count() < 0) spin_time_ = cores_for_all() ? kSpinOnOwnCore : kSpinOnSharedCore;
  const auto end = Clock::now() + spin_time_;
  do {
    for (int i = 0; i < 32; ++i) {
      if (awaited.reached()) return true;
      pause();
    }
  } while (Clock::now() < end);
  return false;
}

void Mailbox::sleep_until(const Awaited& awaited, const Deadline& deadline) {
  Doorbell& doorbell = region_.control(rank_).doorbell;
  auto next_check = Clock::now() + kLifeCheck;
  for (;;) {
    const uint32_t bell = doorbell.listen();
    // Everything that ends the wait is looked at after listen(); what changes later rings.
    const bool over = awaited.reached() || region_.header().failure.published() ||
                      region_.control(awaited.peer).left.load(std::memory_order_seq_cst) != 0;
    if (!over) {
      const auto until_check = std::chrono::nanoseconds(next_check - Clock::now());
      doorbell.sleep(bell, std::min(until_check, deadline.left()));
    }
    doorbell.done();
    // A message that is there counts, whatever happened to its sender since and however late it is.
    if (awaited.reached()) return;
    check();
    const bool late = deadline.passed();
    if (over || late || Clock::now() >= next_check) {
      check_lives(awaited);
      next_check = Clock::now() + kLifeCheck;
    }
    if (late) raise(timed_out(awaited, deadline));
  }
}

void Mailbox::check_lives(const Awaited& awaited) {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const RankControl& peer = region_.control(r);
    // A rank marks itself as left before its sign of life goes: looked at in the other order it would seem dead.
    const bool dead = backing_->died(r);
    const bool left = peer.left.load(std::memory_order_seq_cst) != 0;
    if (left && r != awaited.peer) continue;
    // What it sent before it went is still delivered.
    if ((left || dead) && awaited.reached()) return;
    const uint64_t call = peer.call.load(std::memory_order_relaxed);
    if (left)
      raise(Error(ErrorCode::kPeer, text(name_, ": rank ", r, " left the communicator ", in_call("after", call))));
    if (dead) raise(Error(ErrorCode::kPeer, text(name_, ": rank ", r, " died ", in_call("during", call))));
  }
}

Error Mailbox::timed_out(const Awaited& awaited, const Deadline& deadline) const {
  const uint64_t own = region_.control(rank_).call.load(std::memory_order_relaxed);
  const uint64_t theirs = region_.control(awaited.peer).call.load(std::memory_order_relaxed);
  const char* relation = theirs < own ? "is still" : theirs == own ? "is also" : "is already";
  const std::string receiver = awaited.route_to == kEveryone ? "everyone" : text("rank ", awaited.route_to);
  const std::string awaits = awaited.is_room
                                 ? text("waiting for it to release a message of rank ", rank_, " to ", receiver)
                                 : text("waiting for its message to ", receiver);
  return Error(ErrorCode::kTimeout,
               text(name_, ": call ", own, " timed out after ", duration_text(deadline.allowed()), ": rank ",
                    awaited.peer, " ", relation, " at call ", theirs, " (", awaits, ")"));
}

}  // namespace echo_comm::core
