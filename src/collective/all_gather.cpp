// All-gather. Bytes sent per rank: (W-1) * the encoding of its part. Roundings: one.
//
//   send     every rank encodes its part, sends it to all, and decodes the same bytes as they do
//   receive  everyone decodes the others' parts
#include "collective/call.hpp"

namespace echo_comm::core {

void all_gather(Call& call) {
  const int own = call.rank();
  const int64_t steps = call.steps();
  for (int64_t step = -call.depth; step < steps; ++step) {
    const int64_t ahead = step + call.depth;
    if (call.has_segment(own, ahead)) {
      const Block block = call.segment(own, ahead);
      const std::byte* sent = call.send(kEveryone, 1, block, [&](std::byte* payload) {
        call.codec.encode(block, call.in, call.residuals_of(own), payload);
      });
      call.deliver(own, block, sent);
    }
    for (int distance = 1; distance < call.size(); ++distance) {
      const int owner = call.peer(distance);
      if (!call.has_segment(owner, step)) continue;
      const Block block = call.segment(owner, step);
      call.deliver(owner, block, call.receive_at(step, owner, Route::kEveryone, 1, block));
      call.transport.release(owner, Route::kEveryone);
    }
  }
}

}  // namespace echo_comm::core
