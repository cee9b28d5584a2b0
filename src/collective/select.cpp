#include "collective/select.hpp"

#include <array>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

// First row that covers the world size and the tensor's coded bytes. One-shot waits once but sends the whole tensor to
// every rank; two-shot waits twice and sends 2/W of that.
struct Rule {
  int max_size;
  int64_t max_coded_bytes;
  Kind kind;
};

constexpr int64_t kAny = INT64_MAX;
constexpr std::array kRules = {
    Rule{2, kAny, Kind::kOneShot},  // same bytes as two-shot, one wait, one rounding
    Rule{8, 8 << 10, Kind::kOneShot},
    Rule{64, 1 << 10, Kind::kOneShot},
    Rule{64, kAny, Kind::kTwoShot},
};

constexpr int64_t kSegmentGroups = 4096;  // 262,144 values: small enough to overlap, large enough to hide a wake-up

}  // namespace

Choice select(const GroupLayout& layout, Format format, int size, Algorithm wanted, bool batch_invariant) {
  if (batch_invariant || format.exact()) {
    require(wanted != Algorithm::kOneShot, ErrorCode::kArgument, "one-shot was asked for, but ",
            format.exact() ? "the exact path" : "a batch invariant communicator", " is always two-shot");
    return {Kind::kTwoShot, kSegmentGroups};
  }
  if (wanted == Algorithm::kOneShot) return {Kind::kOneShot, kSegmentGroups};
  if (wanted == Algorithm::kTwoShot) return {Kind::kTwoShot, kSegmentGroups};
  const int64_t coded_bytes = layout.groups() * (code_bytes(format.bits) + kScaleBytes);
  for (const Rule& rule : kRules) {
    if (size <= rule.max_size && coded_bytes <= rule.max_coded_bytes) return {rule.kind, kSegmentGroups};
  }
  fail(ErrorCode::kInternal, "no algorithm for ", size, " ranks and ", coded_bytes, " bytes");
}

}  // namespace echo_comm::core
