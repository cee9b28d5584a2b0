// What a fuzzer's bytes mean: options from the front, then content; past the end pseudo-random bytes, so that short
// inputs reach everything too.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "codec/codec.hpp"
#include "codec/element.hpp"

namespace echo_comm::core {

using Bytes = std::vector<std::byte>;

inline std::size_t to_size(int64_t value) { return static_cast<std::size_t>(value); }

class Source {
 public:
  Source(const uint8_t* data, std::size_t size) : rest_(data, size) {}

  uint8_t byte() {
    if (rest_.empty()) {
      state_ = state_ * 6364136223846793005U + 1442695040888963407U;
      return static_cast<uint8_t>(state_ >> 56);
    }
    const uint8_t first = rest_.front();
    rest_ = rest_.subspan(1);
    return first;
  }
  bool flag() { return (byte() & 1U) != 0; }
  // least .. most
  int64_t number(int64_t least, int64_t most) {
    const int high = byte();
    return least + (high * 256 + byte()) % (most - least + 1);
  }
  template <typename T, std::size_t kSize>
  T one_of(const T (&choices)[kSize]) {
    return choices[byte() % kSize];
  }
  GroupRange range_in(GroupRange all) {
    const int64_t begin = number(all.begin, all.end);
    return {begin, number(begin, all.end)};
  }
  Bytes bytes(int64_t size) {
    Bytes all(to_size(size));
    for (std::byte& b : all) b = std::byte{byte()};
    return all;
  }

  // Any elements; or, as most random bytes are huge or NaN, finite ones of a few magnitudes, so that codes vary.
  Bytes elements(int64_t count, Dtype dtype) {
    Bytes all = bytes(count * element_size(dtype));
    if (flag()) return all;
    for (std::size_t i = 0; i < all.size(); i += to_size(element_size(dtype))) {
      if (dtype == Dtype::kFloat32) edit<uint32_t>(&all[i], [](uint32_t x) { return (x & 0x83FFFFFFU) | 0x3C000000U; });
      if (dtype == Dtype::kFloat16) edit<uint16_t>(&all[i], [](uint32_t x) { return (x & 0x8FFFU) | 0x3000U; });
      if (dtype == Dtype::kBfloat16) edit<uint16_t>(&all[i], [](uint32_t x) { return (x & 0x83FFU) | 0x3C00U; });
    }
    return all;
  }

  // Any payload of a block; or one whose scales are of a few magnitudes.
  Bytes payload(const Block& block) {
    if (block.format.exact()) return elements(block.layout.elements(block.range), block.dtype);
    Bytes all = bytes(block.encoded_bytes());
    if (flag()) return all;
    const std::size_t scales = to_size(block.range.size() * code_bytes(block.format.bits));
    for (std::size_t i = scales; i < all.size(); i += kScaleBytes) {
      edit<uint16_t>(&all[i], [](uint32_t x) { return (x & 0x83FFU) | 0x3C00U; });
    }
    return all;
  }

  // A residual that can occur: finite, values below 2^124, scales not negative.
  Bytes residual(int64_t groups, Store store) {
    Bytes all = bytes(residual_bytes(groups, store));
    const auto below_limit = [](uint32_t x) { return (x & 0x7F800000U) >= kPoisonBits ? x & ~0x40000000U : x; };
    const auto scale = [](uint32_t x) { return (x & 0x7FFFU) >= 0x7600U ? x & 0x3FFFU : x & 0x7FFFU; };  // 2^109
    const std::size_t values = to_size(groups * kGroup * value_bytes(store));
    if (store == Store::kFp32) {
      for (std::size_t i = 0; i < values; i += sizeof(float)) edit<uint32_t>(&all[i], below_limit);
    }
    for (std::size_t i = values; i < all.size(); i += kScaleBytes) edit<uint16_t>(&all[i], scale);
    return all;
  }

 private:
  template <typename Word, typename Change>
  static void edit(std::byte* at, const Change& change) {
    Word word = 0;
    std::memcpy(&word, at, sizeof word);
    word = static_cast<Word>(change(word));
    std::memcpy(at, &word, sizeof word);
  }

  std::span<const uint8_t> rest_;
  uint64_t state_ = 1;
};

}  // namespace echo_comm::core
