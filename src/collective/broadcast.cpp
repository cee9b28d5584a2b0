// Broadcast and barrier: for tools and tests, and to agree on things before the first all-reduce. Never coded.
//
//   broadcast   the root sends its tensor to all; nobody else sends
//   barrier     every rank sends an empty message to all and waits for those of the others
#include <cstring>

#include "collective/call.hpp"

namespace echo_comm::core {

void broadcast(Call& call, int root) {
  const GroupLayout& layout = call.partition.of(0).layout;
  const GroupRange all{0, layout.groups()};
  const int64_t segments = segment_count(all, call.segment_groups);
  for (int64_t step = 0; step < segments; ++step) {
    const Block block{layout, segment_of(all, call.segment_groups, step), call.format, call.dtype};
    const int64_t offset = layout.first_element(block.range.begin) * element_size(call.dtype);
    const auto bytes = static_cast<std::size_t>(block.encoded_bytes());
    const std::byte* sent = nullptr;
    if (call.rank() == root) {
      sent = call.send(kEveryone, 1, block, [&](std::byte* payload) { std::memcpy(payload, call.in + offset, bytes); });
    } else {
      sent = call.receive_at(step, root, Route::kEveryone, 1, block);
    }
    if (bytes > 0 && (call.rank() != root || call.in != call.out)) std::memcpy(call.out + offset, sent, bytes);
    if (call.rank() != root) call.transport.release(root, Route::kEveryone);
  }
}

void barrier(Call& call) {
  const Block nothing{GroupLayout(0, 0), {}, call.format, call.dtype};
  call.send(kEveryone, 1, nothing, [](std::byte* /*payload*/) {});
  for (int peer = 0; peer < call.size(); ++peer) {
    if (peer == call.rank()) continue;
    call.receive_first(peer, Route::kEveryone, 1, nothing);
    call.transport.release(peer, Route::kEveryone);
  }
}

}  // namespace echo_comm::core
