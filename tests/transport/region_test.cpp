// Layout of the shared region: sizes, alignment, nothing shared between writers.
#include "transport/mailbox/region.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "transport/mailbox/mapping.hpp"

namespace echo_comm::core {
namespace {

TEST(Region, FitsAContainerOf64MiBUpTo8Ranks) {  // E3
  for (int size = 1; size <= 8; ++size) {
    const Region region(size, 0);
    EXPECT_LE(region.bytes(), 41 << 20) << size << " ranks";
    EXPECT_GE(region.slot_bytes(), 64 << 10) << size << " ranks";
  }
  EXPECT_EQ(Region(2, 0).slot_bytes(), 512 << 10);
  EXPECT_EQ(Region(kMaxRanks, 0).slot_bytes(), 16 << 10);
}

TEST(Region, SlotsOfAllRoutesAreApartAlignedAndInTheSectionOfTheirSender) {
  for (const int size : {1, 2, 3, 5, 8}) {
    Region region(size, 192);
    const Mapping memory = Mapping::anonymous(region.bytes());
    region.format(memory.bytes());
    std::vector<std::byte*> slots;
    for (int from = 0; from < size; ++from) {
      for (int to = kEveryone; to < size; ++to) {
        if (to == from) continue;
        for (uint64_t message = 0; message < kSlots; ++message) {
          std::byte* slot = region.slot(from, to, message);
          slots.push_back(slot);
          EXPECT_EQ(reinterpret_cast<uintptr_t>(slot) % 64, 0U);
          EXPECT_GE(slot - memory.bytes(), region.section_begin(from));
          EXPECT_LE(slot + region.slot_bytes() - memory.bytes(), region.section_end(from));
          EXPECT_EQ(slot, region.slot(from, to, message + kSlots));
        }
      }
    }
    std::sort(slots.begin(), slots.end());
    for (std::size_t i = 1; i < slots.size(); ++i) EXPECT_GE(slots[i] - slots[i - 1], region.slot_bytes());
    EXPECT_EQ(slots.size(), static_cast<std::size_t>(size * size * kSlots));
  }
}

TEST(Region, EveryCounterHasOneWriterAndACacheLineOfItsOwn) {  // D4
  constexpr int kSize = 5;
  Region region(kSize, 64);
  const Mapping memory = Mapping::anonymous(region.bytes());
  region.format(memory.bytes());
  std::set<const void*> lines;
  std::size_t counters = 0;
  const auto add = [&](const void* counter) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(counter) % 64, 0U);
    lines.insert(counter);
    ++counters;
  };
  for (int from = 0; from < kSize; ++from) {
    add(&region.control(from).doorbell);
    add(&region.control(from).call);
    for (int to = 0; to < kSize; ++to) {
      if (to == from) continue;
      add(&region.produced(from, to));
      add(&region.consumed(from, to, to));
      add(&region.consumed(from, kEveryone, to));
    }
    add(&region.produced(from, kEveryone));
  }
  EXPECT_EQ(lines.size(), counters);
}

TEST(Region, RefusesSizesOutOfRangeAndAnotherLayout) {
  EXPECT_THROW(Region(0, 0), Error);
  EXPECT_THROW(Region(kMaxRanks + 1, 0), Error);
  EXPECT_THROW(Region(2, -64), Error);
  EXPECT_THROW(Region(2, int64_t{1} << 62), Error);
  Region written(3, 4096);
  const Mapping memory = Mapping::anonymous(written.bytes());
  written.format(memory.bytes());
  Region other(3, 8192);
  try {
    other.attach(memory.bytes());
    FAIL() << "attached";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.text();
  }
}

}  // namespace
}  // namespace echo_comm::core
