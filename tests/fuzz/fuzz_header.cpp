// Any bytes as a message: check_header accepts what starts with the expected header and has the expected length, and
// refuses everything else with kMismatch.
#include <cstdio>

#include "base/error.hpp"
#include "source.hpp"
#include "wire/header.hpp"

namespace echo_comm::core {
namespace {

constexpr std::size_t kFixedBytes = 5;  // magic and version: the same in every own header

// Whether check_header accepts; any other exception ends the fuzzer.
bool accepts(const Bytes& message, const MessageHeader& expected, int own_rank, int64_t payload_bytes) {
  try {
    check_header(message, expected, own_rank, payload_bytes);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMismatch) throw;
    return false;
  }
}

void check(Source source) {
  MessageHeader expected;
  const Bytes fields = source.bytes(sizeof expected - kFixedBytes);
  std::memcpy(reinterpret_cast<std::byte*>(&expected) + kFixedBytes, fields.data(), fields.size());
  const int own_rank = source.byte();
  const bool similar = source.flag();
  Bytes message = source.bytes(source.number(0, 80));
  if (similar) {  // the expected header with a few bits changed
    const std::size_t common = std::min(message.size(), sizeof expected);
    for (std::size_t i = 0; i < common; ++i) {
      const bool changed = std::to_integer<int>(message[i]) > 0xF0;
      const auto* own = reinterpret_cast<const std::byte*>(&expected);
      message[i] = own[i] ^ (changed ? std::byte{1} : std::byte{0});
    }
  }
  const int64_t payload_bytes = source.flag() ? static_cast<int64_t>(message.size()) - kHeaderBytes : source.byte();
  const bool right = message.size() >= sizeof expected &&
                     std::memcmp(message.data(), &expected, sizeof expected) == 0 &&
                     static_cast<int64_t>(message.size()) == kHeaderBytes + payload_bytes;
  if (accepts(message, expected, own_rank, payload_bytes) != right) {
    std::fprintf(stderr, "check_header %s a message of %zu bytes\n", right ? "refuses" : "accepts", message.size());
    __builtin_trap();
  }
}

}  // namespace
}  // namespace echo_comm::core

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  echo_comm::core::check({data, size});
  return 0;
}
