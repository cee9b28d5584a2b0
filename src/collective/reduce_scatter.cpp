// Reduce-scatter. Bytes sent per rank: the encodings of all parts but its own. Roundings: one.
//
//   send     every rank encodes each foreign part and sends it to its owner
//   sum      the owner adds W-1 decoded parts and its own addend, unrounded, in rank order, and delivers the sum; what
//            the owner residual holds stays owed
#include "collective/call.hpp"

namespace echo_comm::core {

void reduce_scatter(Call& call) {
  const int own = call.rank();
  const int64_t steps = call.steps();
  const ReduceOptions options{own, call.batch_invariant, call.divisor};
  for (int64_t step = -call.depth; step < steps; ++step) {
    call.send_addends(step + call.depth);
    if (!call.has_segment(own, step)) continue;
    const Block block = call.segment(own, step);
    const std::vector<const std::byte*> addends = call.receive_addends(step);
    call.counters.poisoned_groups += static_cast<uint64_t>(
        call.codec.sum(block, addends, call.in + call.offset_of(own), call.residuals_of(own), options, call.out));
    call.release_addends();
  }
}

}  // namespace echo_comm::core
