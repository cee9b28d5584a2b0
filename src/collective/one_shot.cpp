// One-shot all-reduce. Bytes sent per rank: (W-1) * encoded_size(n). Roundings: one.
//
//   send     every rank encodes its whole tensor plus what it owes: the sender residual everywhere, the owner residual
//            on its own chunk
//   sum      everyone decodes all W encodings, its own included, and adds them in rank order: same bytes, same order,
//            same result on every rank
//
// `depth` segments are sent before the first is awaited, so that peers have work while this rank waits.
#include <array>
#include <vector>

#include "collective/call.hpp"

namespace echo_comm::core {

void one_shot(Call& call) {
  const int rank = call.rank();
  const int size = call.size();
  const GroupLayout& layout = call.partition.of(0).layout;
  const GroupRange all{0, layout.groups()};
  const int64_t segments = segment_count(all, call.segment_groups);
  const auto block = [&](int64_t step) {
    return Block{layout, segment_of(all, call.segment_groups, step), call.format, call.dtype};
  };

  // Of the segments sent and not yet summed: depth + 1 at most.
  std::array<const std::byte*, kSlots> own{};
  std::vector<const std::byte*> payloads(static_cast<std::size_t>(size));
  for (int64_t step = -call.depth; step < segments; ++step) {
    const int64_t ahead = step + call.depth;
    if (ahead < segments) {
      const Block sent = block(ahead);
      own[static_cast<std::size_t>(ahead % kSlots)] = call.send(
          kEveryone, 1, sent, [&](std::byte* payload) { call.codec.encode(sent, call.in, call.residuals, payload); });
    }
    if (step < 0) continue;
    const Block summed = block(step);
    for (int peer = 0; peer < size; ++peer) {
      payloads[static_cast<std::size_t>(peer)] = peer == rank
                                                     ? own[static_cast<std::size_t>(step % kSlots)]
                                                     : call.receive_at(step, peer, Route::kEveryone, 1, summed);
    }
    call.counters.poisoned_groups +=
        static_cast<uint64_t>(call.codec.decode(summed, payloads, call.residuals, {.divisor = call.divisor}, call.out));
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) call.transport.release(peer, Route::kEveryone);
    }
  }
}

}  // namespace echo_comm::core
