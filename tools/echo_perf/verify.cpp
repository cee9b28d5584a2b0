// What is right: results known to the bit, error on random data, and whether all ranks hold the same bytes.
#include <cstring>

#include "common/element.hpp"
#include "echo_perf/measure.hpp"

namespace echo_comm::tools {
namespace {

// Ranks compare these instead of the bytes, so that checking a large result sends almost nothing.
std::uint64_t hash_of(std::span<const std::byte> bytes) {
  std::uint64_t hash = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

void RankRun::verify(Row& row, Place place) {
  struct Share {
    double error;
    double reference;
    std::uint64_t wrong;
  };
  const std::uint64_t wrong = wrong_on_grid(row, place);
  const SquaredError own = error_on_random(row, place);
  SquaredError sum;
  for (const Share& share : exchange_.gather(Share{own.error, own.reference, wrong})) {
    sum.error += share.error;
    sum.reference += share.reference;
    row.places[place].wrong += share.wrong;
  }
  row.places[place].rel_l2 = sum.relative();
}

// Two calls of one pass: the first leaves nothing owed, so the second is exact as well.
std::uint64_t RankRun::wrong_on_grid(Row& row, Place place) {
  const bool no_bits = options_.bits == ECHO_BITS_EXACT || options_.bits == 0;  // the library's default is 4
  const Grid grid{.bits = no_bits ? 4 : options_.bits, .ranks = comm_.size(), .op = options_.op};
  fill(row, grid);
  reset_feedback();
  std::uint64_t wrong = 0;
  for (int repeat = 0; repeat < 2; ++repeat) {
    prepare(row, place, kEcho);
    call(row, place, kEcho);
    wrong += count_wrong_parts(row, grid);
    row.places[place].diverged += count_diverged(row);
  }
  return wrong;
}

// Groups start anew at each part of a reduce-scatter or all-gather.
Grid RankRun::grid_of_part(Grid grid, int rank) const {
  grid.first = static_cast<std::uint64_t>(rank) << 40;
  if (options_.what == ECHO_ALL_GATHER) grid.only = rank;
  return grid;
}

void RankRun::fill(const Row& row, const Grid& grid) {
  if (options_.what == ECHO_ALL_REDUCE) {
    fill_grid(in_.data(), row.count, options_.dtype, comm_.rank(), grid);
    return;
  }
  for (int rank = 0; rank < comm_.size(); ++rank) {  // a gathering rank sends its own part alone
    const Part part = part_of(row, rank);
    fill_grid(in_.data() + part.first * element(), part.count, options_.dtype, comm_.rank(), grid_of_part(grid, rank));
  }
}

std::uint64_t RankRun::count_wrong_parts(const Row& row, const Grid& grid) const {
  if (options_.what == ECHO_ALL_REDUCE) return count_wrong(out_.data(), row.count, options_.dtype, grid);
  std::uint64_t wrong = 0;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    if (options_.what == ECHO_REDUCE_SCATTER && rank != comm_.rank()) continue;
    const Part part = part_of(row, rank);
    wrong += count_wrong(out_.data() + part.first * element(), part.count, options_.dtype, grid_of_part(grid, rank));
  }
  return wrong;
}

// One call with nothing owed before it. Each rank compares its part with fp64; that the rest of its result is the same
// as the others' is what count_diverged says.
SquaredError RankRun::error_on_random(Row& row, Place place) {
  fill_random(in_.data(), row.count, options_.dtype, comm_.rank());
  reset_feedback();
  prepare(row, place, kEcho);
  call(row, place, kEcho);
  row.places[place].diverged += count_diverged(row);
  const Part part = part_of(row, comm_.rank());
  const Summands summands =
      options_.what == ECHO_ALL_GATHER ? Summands{comm_.rank(), 1, ECHO_SUM} : Summands{0, comm_.size(), options_.op};
  return random_error(out_.data(), part.first, part.first + part.count, options_.dtype, summands);
}

// The same figure on every rank. Pieces whose hashes differ are sent round and compared element by element.
std::uint64_t RankRun::count_diverged(const Row& row) const {
  if (options_.what == ECHO_REDUCE_SCATTER) return 0;  // each rank has another part
  constexpr std::size_t kPiece = 1 << 20;
  const auto piece = [&](std::size_t index) {
    const std::size_t at = index * kPiece;
    return std::span<const std::byte>(out_.data() + at, std::min<std::size_t>(kPiece, row.bytes - at));
  };
  std::vector<std::uint64_t> own((row.bytes + kPiece - 1) / kPiece);
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = hash_of(piece(i));
  const std::vector<std::uint64_t> all = exchange_.gather(std::span<const std::uint64_t>(own));
  std::uint64_t diverged = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    bool same = true;
    for (std::size_t at = i; at < all.size(); at += own.size()) same = same && all[at] == all[i];
    if (!same) diverged += count_differences(piece(i));
  }
  return diverged;
}

std::uint64_t RankRun::count_differences(std::span<const std::byte> own) const {
  std::vector<std::uint32_t> words(own.size() / 4 + 1);  // the last one is there for a rest
  std::memcpy(words.data(), own.data(), own.size());
  const std::vector<std::uint32_t> all = exchange_.gather(std::span<const std::uint32_t>(words));
  const auto* first = reinterpret_cast<const std::byte*>(all.data());
  std::uint64_t diverged = 0;
  for (std::size_t at = 0; at < own.size(); at += element()) {
    bool same = true;
    for (std::size_t rank = 1; rank < static_cast<std::size_t>(comm_.size()); ++rank) {
      same = same && std::memcmp(first + at, first + rank * 4 * words.size() + at, element()) == 0;
    }
    diverged += same ? 0 : 1;
  }
  return diverged;
}

}  // namespace echo_comm::tools
