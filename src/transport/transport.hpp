// Room transport: moves bytes between the ranks of one communicator. Knows nothing of codecs or collectives.
//
// Four verbs: acquire room for a message, commit it, receive the next one from a peer, release it. Messages travel
// in order through routes: one from each rank to each other rank (pair), and one from each rank to all others at
// once (everyone), so that bytes meant for all are written once. A route holds kSlots messages; acquire waits for
// the oldest to be released by its readers. Sequence numbers of messages are 64-bit, per route, live with the
// communicator and never wrap in practice.
//
// Every wait has a deadline and watches the failure flag and the peers' lives. The first failure of any rank is
// final for the communicator and reaches every other rank's next or present wait, with its text.
//
// Threads: one thread at a time makes calls; fail() alone may come from another thread at any moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace echo_comm::core {

inline constexpr int kEveryone = -1;  // as the `to` of acquire and commit
inline constexpr int kMaxRanks = 64;
inline constexpr int kSlots = 8;  // messages in flight per route; the collectives send at most kSlots - 1 ahead

enum class Route { kPair, kEveryone };

struct WaitStats {
  uint64_t waits = 0;    // waits that were not satisfied at once
  uint64_t wait_ns = 0;  // time spent in them
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  // Marks this rank as having left; peers that wait for it fail with kPeer. Never waits.
  virtual ~Transport() = default;

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  // Largest message in bytes; a multiple of 64; equal on all ranks.
  [[nodiscard]] virtual std::size_t max_message() const noexcept = 0;
  [[nodiscard]] virtual std::size_t shared_bytes() const noexcept = 0;
  // Messages cross a wire: they take time when nobody works on them.
  [[nodiscard]] virtual bool is_network() const noexcept { return false; }

  // Where this rank listens ("eth0 192.0.2.1"); empty when there is no network.
  [[nodiscard]] virtual std::string address() const { return {}; }

  // Publishes the number of the call this rank is in, for the texts of other ranks' errors.
  virtual void begin_call(uint64_t sequence) noexcept = 0;

  // Room for one message of at most max_message() bytes, 64-byte aligned. Waits for a free slot of the route.
  // At most one uncommitted acquire per route.
  virtual std::span<std::byte> acquire(int to, const Deadline& deadline) = 0;
  // Sends the first `bytes` bytes of what acquire gave. They stay readable to the sender until it has acquired kSlots
  // more messages of the same route.
  virtual void commit(int to, std::size_t bytes) = 0;

  // Waits until a message from `from` is there on any route and says on which; the preferred route if on both. With it
  // a caller notices a peer that does something else than this rank, instead of waiting for one route in vain.
  virtual Route arrival(int from, Route preferred, const Deadline& deadline) = 0;

  // The next message from `from` on `route`, 64-byte aligned; valid until release. Waits for it.
  // Receiving again without release gives the same message.
  virtual std::span<const std::byte> receive(int from, Route route, const Deadline& deadline) = 0;
  virtual void release(int from, Route route) = 0;

  // Marks the communicator as failed; only the first failure of all ranks counts. Any thread, never waits.
  virtual void fail(const Error& error) noexcept = 0;
  // Throws the failure that was recorded, if any: own text as it is, another rank's as "rank R: text".
  virtual void check() const = 0;

  [[nodiscard]] virtual WaitStats wait_stats() const noexcept = 0;
};

}  // namespace echo_comm::core
