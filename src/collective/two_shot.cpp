// Two-shot all-reduce. Bytes sent per rank: 2 (W-1)/W * encoded_size(n). Roundings: one per shot, whatever W is.
// The exact path is the same text with elements in place of codes.
//
//   shot 1   every rank encodes each foreign chunk and sends it to its owner
//   reduce   the owner adds W-1 decoded chunks and its own addend in rank order (never arrival order: results must not
//            depend on timing), then encodes the sum once
//   shot 2   the owner sends the encoded sum to all; everyone decodes those bytes, the owner too: its fp32 sum is more
//            exact but different, and ranks that differ make replicated layers drift apart
//
// Chunks are cut into segments; step k handles segment k of every chunk that has one. Shot 1 of step k+1 is sent
// before step k is reduced. The transport holds kSlots = 2 messages per route: sending shot 1 of k+1 waits until its
// owner has released k-1, which the owner does when it reduces k-1, before it sends shot 1 of k+1 itself; shot 2 of k
// waits until all have decoded shot 2 of k-2. Each wait is for an earlier step, so no circle can form.
//
// In place is safe: segment k of a chunk is read (encoded or reduced) before this rank writes its sum.
#include <algorithm>
#include <vector>

#include "collective/communicator.hpp"

namespace echo_comm::core {
namespace {

class TwoShot {
 public:
  explicit TwoShot(Call& call) : call_(call), rank_(call.transport.rank()), size_(call.transport.size()) {}

  void run() {
    int64_t steps = 0;
    for (int owner = 0; owner < size_; ++owner) {
      steps = std::max(steps, segment_count(chunk(owner), call_.segment_groups));
    }
    send_addends(0);
    for (int64_t step = 0; step < steps; ++step) {
      if (step + 1 < steps) send_addends(step + 1);
      reduce_own_chunk(step);
      receive_sums(step);
    }
  }

 private:
  [[nodiscard]] GroupRange chunk(int owner) const { return chunk_of(call_.layout.groups(), size_, owner); }
  [[nodiscard]] bool has_segment(int owner, int64_t step) const {
    return step < segment_count(chunk(owner), call_.segment_groups);
  }
  [[nodiscard]] GroupRange segment(int owner, int64_t step) const {
    return segment_of(chunk(owner), call_.segment_groups, step);
  }
  // Peers starting behind this rank, so that not all ranks send to rank 0 first.
  [[nodiscard]] int peer(int distance) const { return (rank_ + distance) % size_; }

  void send_addends(int64_t step) {
    Residuals sender_only = call_.residuals;
    sender_only.owner = {};
    for (int distance = 1; distance < size_; ++distance) {
      const int owner = peer(distance);
      if (!has_segment(owner, step)) continue;
      const GroupRange range = segment(owner, step);
      call_.send(owner, 1, range,
                 [&](std::byte* payload) { call_.codec.encode(call_.block(range), call_.in, sender_only, payload); });
    }
  }

  void reduce_own_chunk(int64_t step) {
    if (!has_segment(rank_, step)) return;
    const GroupRange range = segment(rank_, step);
    std::vector<const std::byte*> payloads(size_, nullptr);
    for (int sender = 0; sender < size_; ++sender) {
      if (sender == rank_) continue;
      payloads[sender] = step == 0 ? call_.receive_first(sender, Route::kPair, 1, range)
                                   : call_.receive(sender, Route::kPair, 1, range);
    }
    const ReduceOptions options{rank_, call_.batch_invariant, call_.divisor};
    own_sum_ = call_.send(kEveryone, 2, range, [&](std::byte* payload) {
      call_.codec.reduce(call_.block(range), payloads, call_.in, call_.residuals, options, payload);
    });
    for (int sender = 0; sender < size_; ++sender) {
      if (sender != rank_) call_.transport.release(sender, Route::kPair);
    }
  }

  void receive_sums(int64_t step) {
    for (int distance = 0; distance < size_; ++distance) {
      const int owner = peer(distance);
      if (!has_segment(owner, step)) continue;
      const GroupRange range = segment(owner, step);
      const std::byte* sum = owner == rank_ ? own_sum_ : call_.receive(owner, Route::kEveryone, 2, range);
      call_.counters.poisoned_groups += call_.codec.decode(call_.block(range), Payloads(&sum, 1), call_.residuals,
                                                           {.divisor = call_.divisor}, call_.out);
      if (owner != rank_) call_.transport.release(owner, Route::kEveryone);
    }
  }

  Call& call_;
  int rank_;
  int size_;
  const std::byte* own_sum_ = nullptr;
};

}  // namespace

void two_shot(Call& call) { TwoShot(call).run(); }

}  // namespace echo_comm::core
