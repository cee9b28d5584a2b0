// Layout of the memory that the ranks of one communicator share. Equal for inproc and shm.
//
//   RegionHeader      version, sizes, the failure record
//   RankControl       one per rank: doorbell, number of its call, left or not
//   Produced          one per route: messages sent, length of those in the slots       written by the sender
//   Consumed          one per reader of a route: messages released                     written by that reader
//   slots             one section per sender: its routes, kSlots slots each            written by the sender
//
// Everything that two ranks write lies on different cache lines. Routes are numbered sender * size + receiver; the
// route of a rank to itself does not exist, its number stands for the route from that rank to everyone.
//
// The layout depends on the number of ranks and the slot size, never on a message.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/mailbox/doorbell.hpp"
#include "transport/mailbox/failure.hpp"
#include "transport/transport.hpp"

namespace echo_comm::core {

struct alignas(64) RegionHeader {
  static constexpr uint64_t kMagic = 0x4f48'4345'4c49'414dULL;  // "MAILECHO"
  static constexpr uint32_t kVersion = 1;

  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t size = 0;
  int64_t slot_bytes = 0;
  int64_t region_bytes = 0;
  FailureRecord failure;
};

// The processors a rank may run on, as sched_getaffinity gives them.
using CoreSet = std::array<uint64_t, 16>;

struct alignas(64) RankControl {
  Doorbell doorbell;
  // One line written by the owner only.
  alignas(64) std::atomic<uint64_t> call{0};
  std::atomic<uint32_t> joined{0};
  std::atomic<uint32_t> left{0};
  alignas(64) CoreSet cores{};  // written before `joined`
};

struct alignas(64) Produced {
  std::atomic<uint64_t> count{0};
  // length[n % kSlots] of message n: written before count becomes n + 1, again only after all readers released it.
  std::array<uint64_t, kSlots> length{};
};

struct alignas(64) Consumed {
  std::atomic<uint64_t> count{0};
};

class Region {
 public:
  // Sizes and offsets; throws kArgument when the size is not in 1 .. kMaxRanks or the slot size is out of range.
  Region(int size, int64_t slot_bytes);

  // Slot size when nobody chose one: about 40 MiB for the whole region (up to 8 ranks: a container with 64 MiB must
  // do), but not below 16 KiB and not above 512 KiB.
  static int64_t default_slot_bytes(int size);

  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int64_t slot_bytes() const noexcept { return slot_bytes_; }
  [[nodiscard]] int64_t bytes() const noexcept { return bytes_; }
  // What rank `rank` alone writes: whole pages, so that it can place them near itself. Rank 0 also gets the counters.
  [[nodiscard]] int64_t section_begin(int rank) const noexcept {
    return rank == 0 ? 0 : slots_at_ + rank * section_bytes_;
  }
  [[nodiscard]] int64_t section_end(int rank) const noexcept { return slots_at_ + (rank + 1) * section_bytes_; }

  // Writes the header and all counters into zeroed memory; then attach() may be called there and elsewhere.
  void format(std::byte* memory);
  // Uses memory that was formatted; throws kMismatch when it was formatted differently.
  void attach(std::byte* memory);
  // Rank `rank` publishes what is fixed for its life. Every rank does so before the first of them begins to work.
  void announce(int rank) const noexcept;

  [[nodiscard]] RegionHeader& header() const noexcept { return *at<RegionHeader>(0); }
  [[nodiscard]] RankControl& control(int rank) const noexcept { return at<RankControl>(controls_at_)[rank]; }
  [[nodiscard]] Produced& produced(int from, int to) const noexcept {
    return at<Produced>(produced_at_)[route(from, to)];
  }
  [[nodiscard]] Consumed& consumed(int from, int to, int reader) const noexcept {
    const int64_t index = to == kEveryone ? size_ * size_ + from * size_ + reader : route(from, to);
    return at<Consumed>(consumed_at_)[index];
  }
  [[nodiscard]] std::byte* slot(int from, int to, uint64_t message) const noexcept {
    const int64_t number = (to == kEveryone ? from : to) * kSlots + static_cast<int64_t>(message % kSlots);
    return memory_ + slots_at_ + from * section_bytes_ + number * slot_bytes_;
  }

 private:
  [[nodiscard]] int64_t route(int from, int to) const noexcept {
    return static_cast<int64_t>(from) * size_ + (to == kEveryone ? from : to);
  }
  template <typename T>
  [[nodiscard]] T* at(int64_t offset) const noexcept {
    return reinterpret_cast<T*>(memory_ + offset);
  }

  int size_;
  int64_t slot_bytes_;
  int64_t controls_at_ = 0, produced_at_ = 0, consumed_at_ = 0, slots_at_ = 0, section_bytes_ = 0, bytes_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace echo_comm::core
