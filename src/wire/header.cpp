#include "wire/header.hpp"

#include <bit>
#include <cstring>
#include <string>

#include "base/error.hpp"

namespace echo_comm::core {

static_assert(std::endian::native == std::endian::little, "headers and scales are written in little-endian order");

namespace {

std::string describe(const MessageHeader& header) {
  const Format format{header.bits, (header.flags & MessageHeader::kRotation) != 0};
  std::string row = header.row_length == 0 ? "" : text(" in rows of ", header.row_length);
  return text(header.count, " elements of ", dtype_name(header.dtype), row, " as ", format_name(format), ", ",
              kind_name(header.kind), ", ", (header.flags & MessageHeader::kAverage) != 0 ? "AVG" : "SUM",
              ", feedback ", (header.flags & MessageHeader::kFeedback) != 0 ? "on" : "off",
              (header.flags & MessageHeader::kFlush) != 0 ? ", flush" : "",
              (header.flags & MessageHeader::kBatchInvariant) != 0 ? ", batch invariant" : "", " (call ",
              header.sequence, ")");
}

// The way out, by the first field that differs.
const char* advice(const MessageHeader& theirs, const MessageHeader& ours) {
  if (theirs.sequence != ours.sequence) return "all ranks must make the same calls in the same order";
  if (theirs.count != ours.count) return "all ranks must pass the same count";
  if (theirs.dtype != ours.dtype) return "all ranks must pass the same type";
  if (theirs.row_length != ours.row_length) return "all ranks must pass the same row length";
  if (theirs.shot != ours.shot) return "the ranks are in different steps of the call; this is a bug in Echo";
  return "all ranks must pass the same options";
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kOneShot: return "one-shot";
    case Kind::kTwoShot: return "two-shot";
    case Kind::kReduceScatter: return "reduce-scatter";
    case Kind::kAllGather: return "all-gather";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kBarrier: return "barrier";
  }
  return "unknown";
}

const char* collective_name(Kind kind) {
  switch (kind) {
    case Kind::kOneShot:
    case Kind::kTwoShot: return "all_reduce";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kAllGather: return "all_gather";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kBarrier: return "barrier";
  }
  return "unknown";
}

void write_header(std::span<std::byte> message, const MessageHeader& header) {
  require(message.size() >= sizeof header, ErrorCode::kInternal, "no room for a message header");
  std::memcpy(message.data(), &header, sizeof header);
}

void check_header(std::span<const std::byte> message, const MessageHeader& expected, int own_rank,
                  int64_t payload_bytes) {
  MessageHeader header;
  const char* call = collective_name(expected.kind);
  require(message.size() >= sizeof header, ErrorCode::kMismatch, call, ": rank ", expected.rank, " sent ",
          message.size(), " bytes, rank ", own_rank, " expects a header of ", sizeof header);
  std::memcpy(&header, message.data(), sizeof header);
  require(header.magic == MessageHeader::kMagic && header.version == MessageHeader::kVersion, ErrorCode::kMismatch,
          call, ": rank ", expected.rank, " speaks wire version ", int{header.version}, " (magic ", header.magic,
          "), rank ", own_rank, " speaks version ", int{MessageHeader::kVersion},
          "; all ranks must load the same version of Echo");
  if (std::memcmp(&header, &expected, sizeof header) != 0) {
    fail(ErrorCode::kMismatch, call, ": rank ", expected.rank, " sent ", describe(header), ", rank ", own_rank,
         " expects ", describe(expected), "; ", advice(header, expected));
  }
  const auto payload = static_cast<int64_t>(message.size()) - kHeaderBytes;
  require(payload == payload_bytes, ErrorCode::kMismatch, call, ": rank ", expected.rank, " sent ", payload,
          " bytes of payload, rank ", own_rank, " expects ", payload_bytes, " (call ", expected.sequence, ")");
}

}  // namespace echo_comm::core
