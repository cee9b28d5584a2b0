// Two-shot all-reduce. Bytes sent per rank: 2 (W-1)/W * encoded_size(n). Roundings: one per shot, whatever W is.
// The exact path is the same text with elements in place of codes.
//
//   shot 1   every rank encodes each foreign chunk and sends it to its owner
//   reduce   the owner adds W-1 decoded chunks and its own addend in rank order (never arrival order: results must not
//            depend on timing), then encodes the sum once
//   shot 2   the owner sends the encoded sum to all; everyone decodes those bytes, the owner too: its fp32 sum is more
//            exact but different, and ranks that differ make replicated layers drift apart
//
// Chunks are cut into segments; step k handles segment k of every chunk that has one. With depth d, shot 1 of step k + d
// is sent before step k is reduced, and the sums of step k - d + 1 are awaited after it: on a wire there is always
// something under way while this rank codes. Sums wait for the release of those of step k - kSlots, which all ranks
// decoded in step k - kSlots + d - 1 < k.
//
// In place is safe: segment k of a chunk is read (encoded or reduced) before its sum is written.
#include "collective/call.hpp"

namespace echo_comm::core {
namespace {

void reduce_own_chunk(Call& call, int64_t step) {
  if (!call.has_segment(call.rank(), step)) return;
  const Block block = call.segment(call.rank(), step);
  const std::vector<const std::byte*> addends = call.receive_addends(step);
  const ReduceOptions options{call.rank(), call.batch_invariant, call.divisor};
  const std::byte* sum = call.send(kEveryone, 2, block, [&](std::byte* payload) {
    call.codec.reduce(block, addends, call.in, call.residuals, options, payload);
  });
  call.release_addends();
  call.deliver(call.rank(), block, sum);
}

void receive_sums(Call& call, int64_t step) {
  for (int distance = 1; distance < call.size(); ++distance) {
    const int owner = call.peer(distance);
    if (!call.has_segment(owner, step)) continue;
    const Block block = call.segment(owner, step);
    call.deliver(owner, block, call.receive(owner, Route::kEveryone, 2, block));
    call.transport.release(owner, Route::kEveryone);
  }
}

}  // namespace

void two_shot(Call& call) {
  const int64_t steps = call.steps();
  const int lag = call.depth - 1;
  for (int64_t step = -call.depth; step < steps + lag; ++step) {
    call.send_addends(step + call.depth);
    reduce_own_chunk(call, step);
    receive_sums(call, step - lag);
  }
}

}  // namespace echo_comm::core
