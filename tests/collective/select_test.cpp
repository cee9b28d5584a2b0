#include "collective/select.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

Kind kind_of(int64_t count, int size, Format format = {4, true}, Algorithm wanted = Algorithm::kAuto,
             bool batch_invariant = false) {
  return select(GroupLayout(count, 0), format, size, wanted, batch_invariant).kind;
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

TEST(Select, ExactAndBatchInvariantAreTwoShotAtEverySize) {
  EXPECT_EQ(kind_of(64, 2, {kExactBits, true}), Kind::kTwoShot);
  EXPECT_EQ(kind_of(64, 2, {4, true}, Algorithm::kAuto, true), Kind::kTwoShot);
  EXPECT_THROW(kind_of(64, 3, {kExactBits, true}, Algorithm::kOneShot), Error);
  EXPECT_THROW(kind_of(64, 3, {4, true}, Algorithm::kOneShot, true), Error);
}

TEST(Select, TheCallersWishWins) {
  EXPECT_EQ(kind_of(1, 8, {4, true}, Algorithm::kTwoShot), Kind::kTwoShot);
  EXPECT_EQ(kind_of(1 << 24, 8, {4, true}, Algorithm::kOneShot), Kind::kOneShot);
}

}  // namespace
}  // namespace echo_comm::core
