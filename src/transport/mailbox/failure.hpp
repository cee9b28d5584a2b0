// The one failure of a communicator. The first rank that fails writes it, everybody reads it.
//
// state goes kNone -> kClaimed -> kPublished and never back. Who wins the compare-and-swap to kClaimed writes the
// fields; the store of kPublished (release) makes them readable to whoever loads it (acquire). A writer that dies in
// between leaves kClaimed for ever: the others then find out by themselves, like it, and throw what they saw.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/error.hpp"

namespace echo_comm::core {

struct alignas(64) FailureRecord {
  static constexpr int kTextBytes = 432;

  std::atomic<uint32_t> state{0};
  int32_t code = 0;
  int32_t rank = 0;
  uint32_t length = 0;
  char text[kTextBytes] = {};

  [[nodiscard]] bool published() const noexcept { return state.load(std::memory_order_seq_cst) == 2; }

  // False when another failure came first. The text is cut at kTextBytes.
  bool record(const Error& error, int by_rank) noexcept;
  // The failure as rank `reader` reports it, or nothing.
  [[nodiscard]] std::optional<Error> read(int reader) const;
};

}  // namespace echo_comm::core
