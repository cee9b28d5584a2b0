#include "collective/call.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace echo_comm::core {

int64_t Call::steps() const {
  int64_t most = 0;
  for (int owner = 0; owner < size(); ++owner) {
    most = std::max(most, segment_count(partition.of(owner).range, segment_groups));
  }
  return most;
}

const std::byte* Call::receive(int from, Route route, uint8_t shot, const Block& block) {
  const std::span<const std::byte> message = transport.receive(from, route, deadline);
  MessageHeader expected = header;
  expected.shot = shot;
  expected.rank = static_cast<uint16_t>(from);
  check_header(message, expected, rank(), block.encoded_bytes());
  return message.data() + kHeaderBytes;
}

const std::byte* Call::receive_first(int from, Route route, uint8_t shot, const Block& block) {
  const Route arrived = transport.arrival(from, route, deadline);
  if (arrived == route) return receive(from, route, shot, block);
  receive(from, arrived, shot, block);
  fail(ErrorCode::kInternal, collective_name(header.kind), ": rank ", from,
       " sent a fitting message on the wrong route");
}

void Call::send_addends(int64_t step) {
  for (int distance = 1; distance < size(); ++distance) {
    const int owner = peer(distance);
    if (!has_segment(owner, step)) continue;
    const Block block = segment(owner, step);
    Residuals sender_only = residuals_of(owner);
    sender_only.owner = {};
    send(owner, 1, block,
         [&](std::byte* payload) { codec.encode(block, in + offset_of(owner), sender_only, payload); });
  }
}

std::vector<const std::byte*> Call::receive_addends(int64_t step) {
  const Block block = segment(rank(), step);
  std::vector<const std::byte*> payloads(static_cast<std::size_t>(size()), nullptr);
  for (int sender = 0; sender < size(); ++sender) {
    if (sender == rank()) continue;
    payloads[static_cast<std::size_t>(sender)] = receive_at(step, sender, Route::kPair, 1, block);
  }
  return payloads;
}

void Call::release_addends() {
  for (int sender = 0; sender < size(); ++sender) {
    if (sender != rank()) transport.release(sender, Route::kPair);
  }
}

void Call::deliver(int owner, const Block& block, const std::byte* payload) {
  counters.poisoned_groups += static_cast<uint64_t>(
      codec.decode(block, Payloads(&payload, 1), residuals_of(owner), {.divisor = divisor}, out + offset_of(owner)));
}

}  // namespace echo_comm::core
