#include "transport/mailbox/failure.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace echo_comm::core {
namespace {

constexpr uint32_t kNone = 0;
constexpr uint32_t kClaimed = 1;
constexpr uint32_t kPublished = 2;

// Cuts between characters, not inside one, should a name in the text be UTF-8.
uint32_t length_that_fits(const std::string& text) {
  std::size_t length = text.size();
  if (length <= FailureRecord::kTextBytes) return static_cast<uint32_t>(length);
  length = FailureRecord::kTextBytes;
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) --length;
  return static_cast<uint32_t>(length);
}

// The record lies in memory that a broken peer may have written to.
ErrorCode known_code(int32_t code) {
  const bool known = code >= static_cast<int>(ErrorCode::kArgument) && code <= static_cast<int>(ErrorCode::kInternal);
  return known ? static_cast<ErrorCode>(code) : ErrorCode::kInternal;
}

}  // namespace

bool FailureRecord::record(const Error& error, int by_rank) noexcept {
  uint32_t expected = kNone;
  if (!state.compare_exchange_strong(expected, kClaimed, std::memory_order_acq_rel)) return false;
  code = static_cast<int32_t>(error.code());
  rank = by_rank;
  length = length_that_fits(error.text());
  std::memcpy(text, error.text().data(), length);
  // seq_cst is a release too; a waiter about to sleep must not miss it (doorbell.hpp, step a).
  state.store(kPublished, std::memory_order_seq_cst);
  return true;
}

std::optional<Error> FailureRecord::read(int reader) const {
  if (!published()) return std::nullopt;
  std::string what(text, std::min<std::size_t>(length, kTextBytes));
  if (rank != reader) what = echo_comm::core::text("rank ", rank, ": ", what);
  return Error(known_code(code), std::move(what));
}

}  // namespace echo_comm::core
