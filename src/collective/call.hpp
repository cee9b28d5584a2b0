// One call on its way through an algorithm: what to code, what to say in each message, what to expect.
#pragma once

#include <cstdint>
#include <vector>

#include "base/deadline.hpp"
#include "codec/codec.hpp"
#include "collective/counters.hpp"
#include "collective/select.hpp"
#include "transport/transport.hpp"
#include "wire/header.hpp"

namespace echo_comm::core {

struct Call {
  Transport& transport;
  const Codec& codec;
  const Partition& partition;
  Format format;
  Dtype dtype;
  const std::byte* in;
  std::byte* out;
  Residuals residuals;
  MessageHeader header;  // of shot 1 from this rank; send and receive fill in shot and rank
  bool batch_invariant;
  int divisor;  // 1 for a sum, size for an average
  int64_t segment_groups;
  int depth;  // segments sent ahead, 1 to kSlots - 1
  Deadline deadline;
  Counters& counters;

  [[nodiscard]] int rank() const { return transport.rank(); }
  [[nodiscard]] int size() const { return transport.size(); }
  // Peers starting behind this rank, so that not all ranks send to rank 0 first.
  [[nodiscard]] int peer(int distance) const { return (rank() + distance) % size(); }

  // ---- segments of what a rank owns; step k handles segment k of every rank that has one ----

  [[nodiscard]] int64_t steps() const;
  [[nodiscard]] bool has_segment(int owner, int64_t step) const {
    return step >= 0 && step < segment_count(partition.of(owner).range, segment_groups);
  }
  [[nodiscard]] Block segment(int owner, int64_t step) const {
    const Partition::Piece& piece = partition.of(owner);
    return {piece.layout, segment_of(piece.range, segment_groups, step), format, dtype};
  }

  // Offset of the tensor that the rank's groups belong to, and its residuals.
  [[nodiscard]] int64_t offset_of(int owner) const { return partition.of(owner).first_element * element_size(dtype); }
  [[nodiscard]] Residuals residuals_of(int owner) const {
    Residuals own = residuals;
    own.sender.first = partition.of(owner).first_group;
    return own;
  }

  // ---- messages ----

  // Acquires a message for the block, writes its header, lets `fill` write the payload, commits it.
  // Returns the payload, which stays readable as the transport says.
  template <typename Fill>
  const std::byte* send(int to, uint8_t shot, const Block& block, const Fill& fill) {
    const int64_t bytes = kHeaderBytes + block.encoded_bytes();
    const std::span<std::byte> message = transport.acquire(to, deadline);
    MessageHeader own = header;
    own.shot = shot;
    write_header(message, own);
    std::byte* payload = message.data() + kHeaderBytes;
    fill(payload);
    transport.commit(to, static_cast<std::size_t>(bytes));
    const int readers = to == kEveryone ? size() - 1 : 1;
    counters.payload_bytes += static_cast<uint64_t>(bytes) * static_cast<uint64_t>(readers);
    counters.messages += static_cast<uint64_t>(readers);
    return payload;
  }

  // Payload of the next message from `from`, checked against what this call expects; valid until release.
  const std::byte* receive(int from, Route route, uint8_t shot, const Block& block);

  // The same for the first message of this call from `from`. A peer in another call or algorithm may use the other route
  // for it. Nothing of an earlier call can be pending, and a peer that is already in its next call has sent this call's
  // message before: so a message on the other route alone is a mismatch.
  const std::byte* receive_first(int from, Route route, uint8_t shot, const Block& block);

  // Receives by the first or the second of these, as the step asks.
  const std::byte* receive_at(int64_t step, int from, Route route, uint8_t shot, const Block& block) {
    return step == 0 ? receive_first(from, route, shot, block) : receive(from, route, shot, block);
  }

  // ---- what several algorithms do ----

  // Shot 1 of two-shot and reduce-scatter: each rank encodes what the others own and sends it to them.
  void send_addends(int64_t step);
  // What the others sent of this rank's own segment, by rank; null for this rank.
  std::vector<const std::byte*> receive_addends(int64_t step);
  void release_addends();

  // Decodes the one payload of a segment into `out`.
  void deliver(int owner, const Block& block, const std::byte* payload);
};

// The algorithms. Each throws on failure; the communicator then fails for all ranks.
//
// None of them can end in a circle of waits. At step k a rank sends segments up to k + depth, and the transport holds
// kSlots > depth messages per route: sending segment k + depth waits for the release of segment k + depth - kSlots, which
// its readers did in an earlier step than k.
void one_shot(Call& call);
void two_shot(Call& call);
void reduce_scatter(Call& call);
void all_gather(Call& call);
void broadcast(Call& call, int root);
void barrier(Call& call);

}  // namespace echo_comm::core
