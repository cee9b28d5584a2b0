// The header in front of every message. Checked field by field by every receiver before the payload is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "wire/format.hpp"

namespace echo_comm::core {

// What is being done; in the header, so that different collectives or schedules never mix.
enum class Kind : uint8_t {
  kOneShot = 1,
  kTwoShot = 2,
  kReduceScatter = 3,
  kAllGather = 4,
  kBroadcast = 5,
  kBarrier = 6
};
[[nodiscard]] const char* kind_name(Kind kind);
// The collective as users call it: one-shot and two-shot are both "all_reduce".
[[nodiscard]] const char* collective_name(Kind kind);

struct MessageHeader {
  static constexpr uint32_t kMagic = 0x4F484345;  // "ECHO" in memory, little-endian
  static constexpr uint8_t kVersion = 1;

  // Bits of `flags`.
  static constexpr uint8_t kRotation = 1;
  static constexpr uint8_t kFeedback = 2;
  static constexpr uint8_t kAverage = 4;
  static constexpr uint8_t kBatchInvariant = 8;
  static constexpr uint8_t kFlush = 16;

  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  Kind kind = Kind::kTwoShot;
  Dtype dtype = Dtype::kFloat32;
  uint8_t bits = 4;
  uint64_t sequence = 0;    // number of the call on this communicator, from 1
  uint64_t count = 0;       // elements of the whole tensor
  uint32_t row_length = 0;  // 0: one row
  uint8_t flags = 0;
  uint8_t shot = 0;   // 1 or 2
  uint16_t rank = 0;  // of the sender
};

static_assert(sizeof(MessageHeader) == 32 && std::is_trivially_copyable_v<MessageHeader> &&
              std::is_standard_layout_v<MessageHeader>);
static_assert(offsetof(MessageHeader, sequence) == 8 && offsetof(MessageHeader, count) == 16 &&
              offsetof(MessageHeader, row_length) == 24 && offsetof(MessageHeader, flags) == 28);

inline constexpr int64_t kHeaderBytes = sizeof(MessageHeader);

void write_header(std::span<std::byte> message, const MessageHeader& header);

// Throws kMismatch, naming both sides, unless `message` starts with a header equal to `expected` (own call, but the
// sender's rank and shot) and is exactly `payload_bytes` longer. own_rank is for the text.
void check_header(std::span<const std::byte> message, const MessageHeader& expected, int own_rank,
                  int64_t payload_bytes);

}  // namespace echo_comm::core
