#include "collective/select.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

// First rule that covers the world size and the tensor. One-shot waits once but sends the whole tensor to every rank;
// two-shot waits twice and sends 2/W of that.
struct Rule {
  int max_size;
  int64_t max_bytes;
  Algorithm algorithm;
};

constexpr std::array kRules = {
    Rule{2, INT64_MAX, Algorithm::kOneShot},  // same bytes as two-shot, one wait, one rounding
    Rule{8, 32 << 10, Algorithm::kOneShot},
    Rule{64, 4 << 10, Algorithm::kOneShot},
};

Algorithm by_rule(int size, int64_t bytes) {
  for (const Rule& rule : kRules) {
    if (size <= rule.max_size && bytes <= rule.max_bytes) return rule.algorithm;
  }
  return Algorithm::kTwoShot;
}

// Small enough to overlap, large enough to hide what a message costs: a wake-up, on a wire a few system calls as well.
constexpr int64_t kSegment = 262'144;
// On a wire the first encode and the last decode overlap with nothing, so a small tensor is cut finer, down to this.
constexpr int64_t kSmallestNetworkSegment = 131'072;
constexpr int64_t kNetworkSegments = 4;
constexpr int kNetworkDepth = 3;

int64_t segment_by_rule(const Circumstances& here, Kind kind, int64_t count) {
  if (!here.network) return kSegment;
  const int64_t chunk = kind == Kind::kOneShot ? count : count / here.size;
  return std::clamp(chunk / kNetworkSegments, kSmallestNetworkSegment, kSegment);
}

Kind kind_of(Collective collective, Algorithm algorithm) {
  switch (collective) {
    case Collective::kAllReduce: return algorithm == Algorithm::kOneShot ? Kind::kOneShot : Kind::kTwoShot;
    case Collective::kReduceScatter: return Kind::kReduceScatter;
    case Collective::kAllGather: return Kind::kAllGather;
    case Collective::kBroadcast: return Kind::kBroadcast;
    case Collective::kBarrier: return Kind::kBarrier;
  }
  fail(ErrorCode::kInternal, "unknown collective");
}

// Without residuals one-shot and two-shot give the same bits on the exact path, which leaves the choice to their speed.
// With them one-shot rounds the own addend too: not worth it.
Algorithm choose_algorithm(const Wish& wish, const Circumstances& here, const TableRow* row, bool exact) {
  if (here.batch_invariant) return Algorithm::kTwoShot;
  if (wish.algorithm != Algorithm::kAuto) return wish.algorithm;
  if (exact && wish.feedback) return Algorithm::kTwoShot;
  if (row != nullptr && row->algorithm != Algorithm::kAuto) return row->algorithm;
  return by_rule(here.size, table_bytes(wish.count));
}

}  // namespace

Choice select(const Wish& wish, const Circumstances& here, const Table& table) {
  require(!here.batch_invariant || wish.algorithm != Algorithm::kOneShot, ErrorCode::kArgument,
          "one-shot was asked for, but a batch invariant communicator is always two-shot");
  const TableRow* row = table.find(wish.collective, table_bytes(wish.count));
  Choice choice;
  choice.format = wish.format;
  if (wish.bits_given) {
    choice.reason = "the caller gave the bits";
  } else if (here.batch_invariant) {
    choice.reason = "batch invariant: one path for all sizes";  // else a token's result would depend on its batch
  } else if (row != nullptr && row->path != Path::kCoded) {
    choice.format.bits = kExactBits;
    choice.reason = row->path == Path::kForward ? "the table forwards this size; there is no other engine here"
                                                : "the table sends this size exactly";
  } else {
    choice.reason = row != nullptr ? "the table codes this size" : "default";
  }
  const bool forward = !wish.bits_given && !here.batch_invariant && row != nullptr && row->path == Path::kForward;
  choice.path = forward ? Path::kForward : choice.format.exact() ? Path::kExact : Path::kCoded;
  choice.kind = kind_of(wish.collective, choose_algorithm(wish, here, row, choice.format.exact()));
  const int64_t values =
      row != nullptr && row->segment_values != 0 ? row->segment_values : segment_by_rule(here, choice.kind, wish.count);
  choice.segment_groups = std::max<int64_t>(1, values / kGroup);
  choice.depth = row != nullptr && row->depth != 0 ? row->depth : here.network ? kNetworkDepth : 1;
  return choice;
}

}  // namespace echo_comm::core
