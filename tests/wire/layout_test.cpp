#include "wire/layout.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "wire/format.hpp"

namespace echo_comm::core {
namespace {

TEST(GroupLayout, CountsWholeGroupsAndPadsTheLast) {
  EXPECT_EQ(GroupLayout(0, 0).groups(), 0);
  EXPECT_EQ(GroupLayout(1, 0).groups(), 1);
  EXPECT_EQ(GroupLayout(63, 0).groups(), 1);
  EXPECT_EQ(GroupLayout(64, 0).groups(), 1);
  EXPECT_EQ(GroupLayout(65, 0).groups(), 2);
  EXPECT_EQ(GroupLayout(65, 0).place(1).first, 64);
  EXPECT_EQ(GroupLayout(65, 0).place(1).valid, 1);
}

TEST(GroupLayout, StartsGroupsAnewAtEachRow) {
  const GroupLayout layout(300, 100);  // 3 rows of 64 + 36
  ASSERT_EQ(layout.groups(), 6);
  EXPECT_EQ(layout.place(1).first, 64);
  EXPECT_EQ(layout.place(1).valid, 36);
  EXPECT_EQ(layout.place(2).first, 100);
  EXPECT_EQ(layout.place(2).valid, 64);
  EXPECT_EQ(layout.place(5).first, 264);
  EXPECT_EQ(layout.elements({1, 3}), 36 + 64);
}

TEST(GroupLayout, GroupsTileTheTensorWithoutGapOrOverlap) {
  for (const int64_t row : {0, 1, 63, 64, 65, 100, 200}) {
    const int64_t count = row == 0 ? 1000 : row * 7;
    const GroupLayout layout(count, row);
    int64_t next = 0;
    for (int64_t group = 0; group < layout.groups(); ++group) {
      ASSERT_EQ(layout.place(group).first, next) << "row " << row << " group " << group;
      ASSERT_GE(layout.place(group).valid, 1);
      next += layout.place(group).valid;
    }
    EXPECT_EQ(next, count);
  }
}

TEST(GroupLayout, RefusesARowLengthThatDoesNotDivide) {
  EXPECT_THROW(GroupLayout(100, 33), Error);
  EXPECT_THROW(GroupLayout(100, 200), Error);
  EXPECT_THROW(GroupLayout(100, -1), Error);
  EXPECT_NO_THROW(GroupLayout(0, 33));
}

// B7: index arithmetic beyond 2^31 and 2^32, without the memory.
TEST(GroupLayout, IndexesBeyond32Bits) {
  const int64_t count = (int64_t{1} << 33) + 8;
  const GroupLayout layout(count, 0);
  EXPECT_EQ(layout.groups(), (int64_t{1} << 27) + 1);
  EXPECT_EQ(layout.place(layout.groups() - 1).first, int64_t{1} << 33);
  EXPECT_EQ(layout.place(layout.groups() - 1).valid, 8);
  EXPECT_EQ(encoded_size(layout, {0, layout.groups()}, {8, true}, Dtype::kBfloat16), layout.groups() * 66);
  EXPECT_EQ(encoded_size(layout, {0, layout.groups()}, {kExactBits, true}, Dtype::kFloat32), count * 4);
  EXPECT_THROW(GroupLayout(kMaxCount + 1, 0), Error);
  const GroupLayout largest(kMaxCount, 0);
  EXPECT_EQ(chunk_of(largest.groups(), 64, 63).end, largest.groups());
}

// B1, B2, B3, B10: chunks at any size and world size.
TEST(Chunks, CoverAllGroupsEvenlyAndMayBeEmpty) {
  for (int size = 1; size <= 64; ++size) {
    for (const int64_t groups : {0, 1, 2, 3, 5, 8, 63, 64, 65, 1000}) {
      int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const GroupRange chunk = chunk_of(groups, size, rank);
        ASSERT_EQ(chunk.begin, next);
        ASSERT_GE(chunk.size(), groups / size);
        ASSERT_LE(chunk.size(), groups / size + 1);
        next = chunk.end;
      }
      ASSERT_EQ(next, groups);
    }
  }
}

TEST(Segments, CoverTheChunkAndAnEmptyChunkHasOne) {
  EXPECT_EQ(segment_count({5, 5}, 10), 1);
  EXPECT_EQ(segment_of({5, 5}, 10, 0), (GroupRange{5, 5}));
  EXPECT_EQ(segment_count({0, 10}, 10), 1);
  EXPECT_EQ(segment_count({0, 11}, 10), 2);
  EXPECT_EQ(segment_of({3, 14}, 10, 1), (GroupRange{13, 14}));
}

TEST(Format, SizesAreThoseOfTheSpecification) {
  EXPECT_EQ(code_bytes(3), 24);
  EXPECT_EQ(code_bytes(4), 32);
  EXPECT_EQ(code_bytes(5), 40);
  EXPECT_EQ(code_bytes(6), 48);
  EXPECT_EQ(code_bytes(8), 64);
  for (const int bits : {-1, 0, 1, 2, 7, 9, 15, 17}) EXPECT_FALSE(is_bits(bits)) << bits;
}

}  // namespace
}  // namespace echo_comm::core
