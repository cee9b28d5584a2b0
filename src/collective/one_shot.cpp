// One-shot all-reduce. Bytes sent per rank: (W-1) * encoded_size(n). Roundings: one.
//
//   send     every rank encodes its whole tensor plus what it owes: the sender residual everywhere, the owner residual
//            on its own chunk
//   sum      everyone decodes all W encodings, its own included, and adds them in rank order: same bytes, same order,
//            same result on every rank
//
// Segment k+1 is sent before segment k is awaited, so that peers have work while this rank waits. The transport holds
// kSlots = 2 messages per route: sending k+1 waits until all have released k-1, which each does before it sends k+2;
// no circle of waits can form.
#include <vector>

#include "collective/communicator.hpp"

namespace echo_comm::core {

void one_shot(Call& call) {
  const int rank = call.transport.rank();
  const int size = call.transport.size();
  const GroupRange all{0, call.layout.groups()};
  const int64_t segments = segment_count(all, call.segment_groups);
  const auto segment = [&](int64_t step) { return segment_of(all, call.segment_groups, step); };

  const auto send = [&](int64_t step) {
    return call.send(kEveryone, 1, segment(step), [&](std::byte* payload) {
      call.codec.encode(call.block(segment(step)), call.in, call.residuals, payload);
    });
  };

  const auto receive = [&](int peer, int64_t step) {
    return step == 0 ? call.receive_first(peer, Route::kEveryone, 1, segment(step))
                     : call.receive(peer, Route::kEveryone, 1, segment(step));
  };

  std::vector<const std::byte*> payloads(size);
  const std::byte* own = send(0);
  for (int64_t step = 0; step < segments; ++step) {
    const std::byte* next_own = step + 1 < segments ? send(step + 1) : nullptr;
    for (int peer = 0; peer < size; ++peer) payloads[peer] = peer == rank ? own : receive(peer, step);
    call.counters.poisoned_groups +=
        call.codec.decode(call.block(segment(step)), payloads, call.residuals, {.divisor = call.divisor}, call.out);
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) call.transport.release(peer, Route::kEveryone);
    }
    own = next_own;
  }
}

}  // namespace echo_comm::core
