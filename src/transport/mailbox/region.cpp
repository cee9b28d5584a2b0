#include "transport/mailbox/region.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>

#include "base/checked.hpp"

namespace echo_comm::core {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kSmallestSlot = 64;
constexpr int64_t kLargestSlot = 64 << 20;

// Another process sees the same objects without having constructed them.
template <typename T>
constexpr bool kShareable = std::is_standard_layout_v<T>&& std::is_trivially_destructible_v<T> && alignof(T) == 64;
static_assert(kShareable<RegionHeader> && kShareable<RankControl> && kShareable<Produced> && kShareable<Consumed>);
static_assert(sizeof(Produced) % 64 == 0 && sizeof(Consumed) == 64);

CoreSet usable_cores() {
  CoreSet cores{};
  static_assert(sizeof(cpu_set_t) == sizeof(CoreSet));
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    std::memcpy(cores.data(), &set, sizeof set);
  } else {
    cores.fill(~uint64_t{0});  // the kernel knows more than 1024 processors
  }
  return cores;
}

}  // namespace

Region::Region(int size, int64_t slot_bytes) : size_(size), slot_bytes_(slot_bytes) {
  require(size >= 1 && size <= kMaxRanks, ErrorCode::kArgument, "size is ", size, ", must be from 1 to ", kMaxRanks);
  if (slot_bytes_ == 0) slot_bytes_ = default_slot_bytes(size);
  require(slot_bytes_ >= kSmallestSlot && slot_bytes_ <= kLargestSlot, ErrorCode::kArgument, "slot_bytes is ",
          slot_bytes, ", must be from ", kSmallestSlot, " to ", kLargestSlot);
  slot_bytes_ = align_up(slot_bytes_, 64);
  const int64_t routes = static_cast<int64_t>(size) * size;
  const auto after = [](int64_t offset, int64_t count, std::size_t each) {
    return checked_add(offset, checked_mul(count, static_cast<int64_t>(each), "region"), "region");
  };
  controls_at_ = sizeof(RegionHeader);
  produced_at_ = after(controls_at_, size, sizeof(RankControl));
  consumed_at_ = after(produced_at_, routes, sizeof(Produced));
  slots_at_ = align_up(after(consumed_at_, 2 * routes, sizeof(Consumed)), kPage);
  section_bytes_ = align_up(checked_mul(checked_mul(size, kSlots, "region"), slot_bytes_, "region"), kPage);
  bytes_ = checked_add(slots_at_, checked_mul(size, section_bytes_, "region"), "region");
}

int64_t Region::default_slot_bytes(int size) {
  constexpr int64_t kBudget = 40 << 20;
  const int64_t slots = std::max<int64_t>(1, static_cast<int64_t>(size) * size * kSlots);
  return std::clamp<int64_t>(kBudget / slots / kPage * kPage, 16 << 10, 512 << 10);
}

void Region::format(std::byte* memory) {
  memory_ = memory;
  auto* header = new (memory) RegionHeader;
  header->size = size_;
  header->slot_bytes = slot_bytes_;
  header->region_bytes = bytes_;
  const int64_t routes = static_cast<int64_t>(size_) * size_;
  for (int r = 0; r < size_; ++r) new (at<RankControl>(controls_at_) + r) RankControl;
  for (int64_t r = 0; r < routes; ++r) new (at<Produced>(produced_at_) + r) Produced;
  for (int64_t r = 0; r < 2 * routes; ++r) new (at<Consumed>(consumed_at_) + r) Consumed;
}

void Region::attach(std::byte* memory) {
  memory_ = memory;
  const RegionHeader& found = header();
  require(found.magic == RegionHeader::kMagic && found.version == RegionHeader::kVersion && found.size == size_ &&
              found.slot_bytes == slot_bytes_ && found.region_bytes == bytes_,
          ErrorCode::kMismatch, "shared region of version ", found.version, " for ", found.size,
          " ranks with slots of ", found.slot_bytes, " bytes, this rank expects version ", RegionHeader::kVersion, ", ",
          size_, " ranks, ", slot_bytes_, " bytes; all ranks must load the same library");
}

void Region::announce(int rank) const noexcept {
  control(rank).cores = usable_cores();
  control(rank).joined.store(1, std::memory_order_release);
}

}  // namespace echo_comm::core
