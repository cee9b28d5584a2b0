#include "collective/select.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

Choice choose(const Wish& wish, int size, bool batch_invariant = false, const Table& table = {}) {
  return select(wish, {.size = size, .batch_invariant = batch_invariant}, table);
}

Kind kind_of(int64_t count, int size, Format format = {4, true}, Algorithm wanted = Algorithm::kAuto,
             bool batch_invariant = false) {
  return choose({.count = count, .format = format, .algorithm = wanted}, size, batch_invariant).kind;
}

TEST(Select, TwoRanksAreOneShotAtEverySize) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1} << 20, int64_t{1} << 33}) {
    EXPECT_EQ(kind_of(count, 2), Kind::kOneShot);
  }
}

TEST(Select, ManyRanksAreOneShotOnlyForSmallTensors) {
  for (const int size : {3, 4, 8, 64}) {
    EXPECT_EQ(kind_of(576, size), Kind::kOneShot);
    EXPECT_EQ(kind_of(512 * 576, size), Kind::kTwoShot);
  }
}

TEST(Select, BatchInvariantIsTwoShotAtEverySize) {
  EXPECT_EQ(kind_of(64, 2, {4, true}, Algorithm::kAuto, true), Kind::kTwoShot);
  EXPECT_THROW(kind_of(64, 3, {4, true}, Algorithm::kOneShot, true), Error);
}

TEST(Select, TheExactPathWithResidualsIsTwoShot) {
  const Format exact{kExactBits, true};
  EXPECT_EQ(choose({.count = 64, .format = exact}, 2).kind, Kind::kOneShot);
  EXPECT_EQ(choose({.count = 64, .format = exact, .feedback = true}, 2).kind, Kind::kTwoShot);
}

// Two floors: below one the exact path is taken, below the other Echo is not used at all.
TEST(Select, TheTableHasTwoFloors) {
  const Table table =
      Table::parse("all_reduce 4K forward; all_reduce 64K exact; all_reduce * coded two_shot segment=32K depth=2");
  const Choice forwarded = choose({.count = 2048}, 2, false, table);
  EXPECT_EQ(forwarded.path, Path::kForward);
  EXPECT_TRUE(forwarded.format.exact()) << "who has no other engine takes the exact path";
  const Choice exact = choose({.count = 2049}, 2, false, table);
  EXPECT_EQ(exact.path, Path::kExact);
  EXPECT_STREQ(exact.reason, "the table sends this size exactly");
  const Choice coded = choose({.count = 32769}, 2, false, table);
  EXPECT_EQ(coded.path, Path::kCoded);
  EXPECT_EQ(coded.kind, Kind::kTwoShot);
  EXPECT_EQ(coded.segment_groups, 512);
  EXPECT_EQ(coded.depth, 2);
  const Choice other = choose({.collective = Collective::kAllGather, .count = 10}, 2, false, table);
  EXPECT_EQ(other.path, Path::kCoded) << "no row for it: the built-in rules";
}

TEST(Select, TheTableChangesNeitherGivenBitsNorABatchInvariantCommunicator) {
  const Table table = Table::parse("all_reduce * exact");
  EXPECT_EQ(choose({.count = 64, .bits_given = true}, 2, false, table).path, Path::kCoded);
  EXPECT_EQ(choose({.count = 64}, 2, true, table).path, Path::kCoded);
  EXPECT_EQ(choose({.count = 64, .format = {8, true}}, 2, false, table).format.bits, kExactBits) << "a flush, too";
}

// The first encode and the last decode of a call overlap with nothing.
TEST(Select, OnAWireSmallTensorsAreCutIntoSmallerSegments) {
  const auto values = [](int64_t count, int size, bool network) {
    return kGroup * select({.count = count}, {.size = size, .network = network}, {}).segment_groups;
  };
  EXPECT_EQ(values(1 << 19, 2, false), 262'144);
  EXPECT_EQ(values(1 << 19, 2, true), 131'072);
  EXPECT_EQ(values(1 << 21, 2, true), 262'144);
  EXPECT_EQ(values(3 << 20, 4, true), 196'608) << "a quarter of a chunk";
  EXPECT_EQ(values(1, 2, true), 131'072);
  EXPECT_EQ(values(int64_t{1} << 33, 4, true), 262'144);
}

TEST(Select, TheCallersWishWins) {
  EXPECT_EQ(kind_of(1, 8, {4, true}, Algorithm::kTwoShot), Kind::kTwoShot);
  EXPECT_EQ(kind_of(1 << 24, 8, {4, true}, Algorithm::kOneShot), Kind::kOneShot);
}

}  // namespace
}  // namespace echo_comm::core
