// What is right: results known to the bit, error on random data, and whether all ranks hold the same bytes.
#include <cstring>

#include "common/element.hpp"
#include "common/inputs.hpp"
#include "echo_perf/measure.hpp"

namespace echo_comm::tools {

void RankRun::verify(Row& row, Place place) {
  barrier();  // rank 0 has read what was here
  results_.share(comm_.rank()) = {};
  verify_grid(row, place);
  verify_random(row, place);
  collect_verified(row, place);
}

// Two calls of one pass: the first leaves nothing owed, so the second is exact as well.
void RankRun::verify_grid(const Row& row, Place place) {
  const Grid grid{
      .bits = options_.bits == ECHO_BITS_EXACT ? 4 : options_.bits, .ranks = comm_.size(), .op = options_.op};
  fill_grid(in_.data(), row.count, options_.dtype, comm_.rank(), grid);
  reset_feedback();
  for (int repeat = 0; repeat < 2; ++repeat) {
    prepare(row, place);
    call(row, place, kEcho);
    results_.share(comm_.rank()).wrong += count_wrong(out_.data(), row.count, options_.dtype, grid);
    count_diverged(row, out_.data());
  }
}

// One call with nothing owed before it. Each rank compares its part with fp64; that the rest of its result is the same
// as the others' is what count_diverged says.
void RankRun::verify_random(Row& row, Place place) {
  fill_random(in_.data(), row.count, options_.dtype, comm_.rank());
  reset_feedback();
  prepare(row, place);
  call(row, place, kEcho);
  const auto rank = static_cast<std::uint64_t>(comm_.rank());
  const auto size = static_cast<std::uint64_t>(comm_.size());
  const SquaredError part = random_error(out_.data(), row.count * rank / size, row.count * (rank + 1) / size,
                                         options_.dtype, comm_.size(), options_.op);
  results_.share(comm_.rank()).error = part.error;
  results_.share(comm_.rank()).reference = part.reference;
  count_diverged(row, out_.data());
}

// Piece by piece: all ranks show theirs, then each compares its part of the piece over all ranks.
void RankRun::count_diverged(const Row& row, const std::byte* result) {
  const auto rank = static_cast<std::size_t>(comm_.rank());
  const auto size = static_cast<std::size_t>(comm_.size());
  const std::size_t element = element_size(options_.dtype);
  std::uint64_t diverged = 0;
  for (std::size_t at = 0; at < row.bytes; at += SharedResults::kWindow) {
    const std::size_t bytes = std::min<std::size_t>(SharedResults::kWindow, row.bytes - at);
    std::memcpy(results_.window(comm_.rank()), result + at, bytes);
    barrier();
    const std::size_t elements = bytes / element;
    const std::byte* first = results_.window(0);
    for (std::size_t i = elements * rank / size; i < elements * (rank + 1) / size; ++i) {
      bool same = true;
      for (int other = 1; other < comm_.size(); ++other) {
        same = same && std::memcmp(first + i * element, results_.window(other) + i * element, element) == 0;
      }
      diverged += same ? 0 : 1;
    }
    barrier();  // the windows may be overwritten from here on
  }
  results_.share(comm_.rank()).diverged += diverged;
}

void RankRun::collect_verified(Row& row, Place place) {
  barrier();
  Measurement& verified = row.places[place];
  SquaredError sum;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    const SharedResults::Share& share = results_.share(rank);
    sum.error += share.error;
    sum.reference += share.reference;
    verified.wrong += share.wrong;
    verified.diverged += share.diverged;
  }
  verified.rel_l2 = sum.relative();
  barrier();
}

}  // namespace echo_comm::tools
