// What two ranks send each other over their connection: frames, numbered from 1 in each direction.
//
// Frame n goes to entry (n - 1) % kRing of the receiver's ring. A message of up to kInlineBytes travels inside its
// frame; a longer one is written into its slot of the receiver's region just before its frame (TCP keeps the order), so
// that a frame is complete only when all it speaks of is.
//
// Every frame carries what else the peer should know: how many of its frames were handled, how many of its messages
// were released (credits), and which call this rank is in.
//
// An entry is used again kRing frames later. An honest peer always handles frames in time: unhandled at once can be at
// most 2 kSlots messages, as many credits, an answer, a failure, a leave and its answer, which is less than kRing. So a
// sender that would have to wait for an entry knows that the peer does not keep to the protocol.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/transport.hpp"

namespace echo_comm::core {

enum class FrameKind : uint8_t {
  kPairMessage = 1,
  kEveryoneMessage = 2,
  kCredit = 3,  // nothing but the counts that every frame carries
  kQuery = 4,   // asks for a kCredit: which call are you in?
  kFail = 5,    // code and text; message: the rank where it began
  kLeave = 6,
  kLeaveSeen = 7,
  kReady = 8,  // creation: connected to all; to rank 0
  kGo = 9,     // creation: all are; from rank 0
};

struct FrameHeader {
  static constexpr uint32_t kMagic = 0x4647'4345;  // "ECGF"

  uint32_t magic = kMagic;
  FrameKind kind = FrameKind::kCredit;
  uint8_t code = 0;  // of a failure
  uint16_t reserved = 0;
  uint64_t number = 0;
  uint64_t handled = 0;        // frames of the receiver that the sender handled
  uint64_t call = 0;           // that the sender is in
  uint64_t released_pair = 0;  // messages of the receiver that the sender released
  uint64_t released_everyone = 0;
  uint64_t message = 0;  // its number on its route
  uint64_t length = 0;   // bytes of a message or a text
};
static_assert(sizeof(FrameHeader) == 64);

inline constexpr uint64_t kRing = 64;
inline constexpr std::size_t kFrameBytes = 512;
// The rest of a frame is its end: the number once more, so that a frame cut off by the end of a connection shows.
inline constexpr std::size_t kInlineBytes = kFrameBytes - sizeof(FrameHeader) - sizeof(uint64_t);
static_assert(4 * kSlots + 8 < kRing);

// The first that is sent on a connection, both ways, before memory for anything else is registered.
struct HelloFrame {
  static constexpr uint32_t kMagic = 0x4847'4345;  // "ECGH"

  uint32_t magic = kMagic;
  int32_t rank = -1;
  unsigned char token[16] = {};
};

// Gloo's numbers of the buffers of a connection.
inline constexpr int kHelloBuffer = 1;
inline constexpr int kFrameBuffer = 2;
inline constexpr int kPairBuffer = 3;
inline constexpr int kEveryoneBuffer = 4;
inline constexpr int kWarmBuffer = 5;
inline constexpr int kWakeBuffer = 6;  // nobody receives there

// Sent once, without meaning, because Gloo makes a socket's send buffer twice as large as the largest message so far:
// with small messages first, a few would fill it and wait for an acknowledgement that TCP delays by 40 ms. Twice
// this is what Linux grants by default (net.core.wmem_max).
inline constexpr std::size_t kWarmBytes = 104 << 10;

}  // namespace echo_comm::core
