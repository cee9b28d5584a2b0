// The kernel on Highway vectors for the sweeps of sweep-inl.hpp: one group of 64 values, or a tile of a few groups.
// Included once for each instruction set, inside its namespace: hence no include guard, no includes.
//
// A group is two halves, its even and its odd elements. So the first butterflies of the rotation (stride 1), the packing
// of nibbles and the widening of 16-bit elements need no shuffles: an even and an odd element share a byte of codes and
// a 32-bit word of bf16. Where vectors have a size that the compiler knows, a half lies in registers; where they have not
// (SVE), in memory.

using F = hn::CappedTag<float, 16>;
using U = hn::RebindToUnsigned<F>;
using I = hn::RebindToSigned<F>;
using V = hn::Vec<F>;
using VU = hn::Vec<U>;
using VI = hn::Vec<I>;

inline constexpr int kHalf = kGroup / 2;
inline constexpr int kMostLanes = static_cast<int>(hn::MaxLanes(F()));

HWY_INLINE int lanes() { return static_cast<int>(hn::Lanes(F())); }
HWY_INLINE int vectors() { return kHalf / lanes(); }  // of a half

#if HWY_HAVE_SCALABLE
class Half {
 public:
  HWY_INLINE V get(int i) const { return hn::Load(F(), &lanes_[static_cast<std::size_t>(i * lanes())]); }
  HWY_INLINE void set(int i, V v) { hn::Store(v, F(), &lanes_[static_cast<std::size_t>(i * lanes())]); }

 private:
  alignas(64) std::array<float, kHalf> lanes_;
};
#else
class Half {
 public:
  // Written out, because implicit members are not compiled for the instruction set.
  HWY_INLINE Half() {}  // NOLINT(modernize-use-equals-default)
  HWY_INLINE V get(int i) const { return v_[i]; }
  HWY_INLINE void set(int i, V v) { v_[i] = v; }

 private:
  V v_[kHalf / kMostLanes];
};
#endif

struct Group {
  HWY_INLINE Group() {}  // NOLINT(modernize-use-equals-default): as above

  Half even;
  Half odd;
};

template <typename Body>
HWY_INLINE void each(Group& group, const Body& body) {
  for (int i = 0; i < vectors(); ++i) {
    group.even.set(i, body(group.even.get(i)));
    group.odd.set(i, body(group.odd.get(i)));
  }
}

HWY_INLINE VU bits_of(V v) { return hn::BitCast(U(), v); }

// ---- rounding to integers ------------------------------------------------------------------------------------------

// |x| < 2^21: x + 1.5 * 2^23 has no bits behind the binary point, and the integer in its low bits.
inline constexpr float kRound = 0x1.8p23F;

// ---- elements; element.hpp has the same in scalar code -------------------------------------------------------------

// Of 16-bit elements, in the low half of each lane.
HWY_INLINE V widen_low(Bf16 /*type*/, VU pairs) { return hn::BitCast(F(), hn::ShiftLeft<16>(pairs)); }
HWY_INLINE V widen_high(Bf16 /*type*/, VU pairs) { return hn::BitCast(F(), hn::And(pairs, hn::Set(U(), 0xFFFF0000U))); }

HWY_INLINE V widen(Fp16 /*type*/, VU stored) {
  const VU magnitude = hn::And(stored, hn::Set(U(), 0x7FFFU));
  const VU sign = hn::ShiftLeft<16>(hn::Xor(stored, magnitude));
  // The exponent of fp16, read as that of fp32, is 112 too small; denormals become denormals and are scaled too.
  const V scaled = hn::Mul(hn::BitCast(F(), hn::ShiftLeft<13>(magnitude)), hn::Set(F(), 0x1p112F));
  const VU special = hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(U(), 0x7F800000U));
  const auto is_special = hn::Gt(hn::BitCast(I(), magnitude), hn::Set(I(), 0x7BFF));
  const VU value = hn::IfThenElse(hn::RebindMask(U(), is_special), special, hn::BitCast(U(), scaled));
  return hn::BitCast(F(), hn::Or(value, sign));
}
HWY_INLINE V widen_low(Fp16 type, VU pairs) { return widen(type, hn::And(pairs, hn::Set(U(), 0xFFFFU))); }
HWY_INLINE V widen_high(Fp16 type, VU pairs) { return widen(type, hn::ShiftRight<16>(pairs)); }

// Rounded to the type, in the high half of each lane; the low half holds what is left of the sum.
HWY_INLINE VU narrow_high(Bf16 /*type*/, V v) {
  const VU bits = bits_of(v);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(U(), 1U));
  return hn::Add(hn::Add(bits, hn::Set(U(), 0x7FFFU)), odd);
}

HWY_INLINE hn::Mask<U> less(VU magnitude, int32_t limit) {
  return hn::RebindMask(U(), hn::Lt(hn::BitCast(I(), magnitude), hn::Set(I(), limit)));
}

HWY_INLINE VU narrow_high(Fp16 /*type*/, V v) {
  const VU bits = bits_of(v);
  const VU magnitude = hn::And(bits, hn::Set(U(), 0x7FFFFFFFU));
  const VU sign = hn::And(bits, hn::Set(U(), 0x80000000U));
  const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(U(), 1U));
  const VU normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(U(), 0xC8000FFFU)), odd));
  const V shifted = hn::Add(hn::BitCast(F(), magnitude), hn::Set(F(), 0.5F));
  const VU denormal = hn::Sub(bits_of(shifted), hn::Set(U(), 0x3F000000U));
  const VU finite = hn::IfThenElse(less(magnitude, 0x38800000), denormal, normal);
  const VU value = hn::IfThenElse(less(magnitude, 0x477FF000), finite, hn::Set(U(), 0x7C00U));
  return hn::Or(hn::ShiftLeft<16>(value), sign);
}

template <typename Element>
HWY_INLINE VU canonical(V v, VU narrowed) {
  const VU nan = hn::Set(U(), uint32_t{Element::nan()} << 16);
  return hn::IfThenElse(hn::RebindMask(U(), hn::IsNaN(v)), nan, narrowed);
}

// ---- rotation ------------------------------------------------------------------------------------------------------

// Butterfly between lanes `kDistance` apart: the first of a pair gets a + b = b + a * 1, the second a - b = a + b * -1.
// A multiply-add with a factor of +-1 rounds once, as the addition does.
constexpr std::array<float, 16> signs(int distance) {
  std::array<float, 16> result{};
  for (int lane = 0; lane < 16; ++lane) result[lane] = (lane & distance) == 0 ? 1.0F : -1.0F;
  return result;
}

template <int kDistance>
HWY_INLINE V swap(V v) {
  if constexpr (kDistance == 1) {
    return hn::Shuffle2301(v);
  } else if constexpr (kDistance == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (kDistance == 4) {
    return hn::SwapAdjacentBlocks(v);
  } else {
    return hn::ConcatLowerUpper(F(), v, v);
  }
}

template <int kDistance>
HWY_INLINE V butterfly_in(V v) {
  alignas(64) static constexpr std::array<float, 16> kSigns = signs(kDistance);
  return hn::MulAdd(v, hn::Load(F(), kSigns.data()), swap<kDistance>(v));
}

// Strides 2 to 32 of the group: distances 1 to 16 within a half. Those inside a vector first, in this order.
HWY_INLINE void turn_half(Half& half) {
  for (int i = 0; i < vectors(); ++i) {
    V v = butterfly_in<2>(butterfly_in<1>(half.get(i)));
    if constexpr (kMostLanes > 4) {
      if (lanes() > 4) v = butterfly_in<4>(v);
    }
    if constexpr (kMostLanes > 8) {
      if (lanes() > 8) v = butterfly_in<8>(v);
    }
    half.set(i, v);
  }
  for (int stride = 1; stride < vectors(); stride *= 2) {
    for (int i = 0; i < vectors(); ++i) {
      if ((i & stride) != 0) continue;
      const V a = half.get(i);
      const V b = half.get(i + stride);
      half.set(i, hn::Add(a, b));
      half.set(i + stride, hn::Sub(a, b));
    }
  }
}

// The butterflies alone; the factor 1/8 has been applied.
HWY_INLINE void turn(Group& group) {
  for (int i = 0; i < vectors(); ++i) {
    const V a = group.even.get(i);
    const V b = group.odd.get(i);
    group.even.set(i, hn::Add(a, b));
    group.odd.set(i, hn::Sub(a, b));
  }
  turn_half(group.even);
  turn_half(group.odd);
}

#include "codec/packing-inl.hpp"

// ---- codes ---------------------------------------------------------------------------------------------------------

// Stored values -> (stored - 2^(bits-1)) * factor; every product is exact.
HWY_INLINE void to_values(Group& stored, float factor, int bits) {
  const VI lowest = hn::Set(I(), lowest_code(bits));
  const V scale = hn::Set(F(), factor);
  each(stored, [&](V v) HWY_ATTR { return hn::Mul(hn::ConvertTo(F(), hn::Add(hn::BitCast(I(), v), lowest)), scale); });
}

// Groups on their way to codes: up to kCapacity, in the order of halves.
class Tile {
 public:
  static constexpr int kCapacity = 8;

  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool full() const { return size_ == kCapacity; }

  HWY_INLINE void put(const Group& group, const GroupResidual& residual) {
    float* values = values_of(size_);
    // Positive numbers order like their bits as signed integers, negative magnitudes like theirs as unsigned ones.
    VI positive = hn::BitCast(I(), group.even.get(0));
    VU negative = bits_of(group.even.get(0));
    for (int i = 0; i < vectors(); ++i) {
      const V even = group.even.get(i);
      const V odd = group.odd.get(i);
      hn::Store(even, F(), values + i * lanes());
      hn::Store(odd, F(), values + kHalf + i * lanes());
      positive = hn::Max(positive, hn::Max(hn::BitCast(I(), even), hn::BitCast(I(), odd)));
      negative = hn::Max(negative, hn::Max(bits_of(even), bits_of(odd)));
    }
    const auto at = static_cast<std::size_t>(size_);
    hn::Store(positive, I(), positive_[at].data());
    hn::Store(negative, U(), negative_[at].data());
    residuals_[at] = residual;
    ++size_;
  }

  // Writes codes and scales of the groups, renews their residuals, forgets them. Returns the number of poisoned groups.
  HWY_INLINE int64_t encode(int bits, uint8_t* codes, std::byte* scales) {
    int64_t poisoned = 0;
    const float unit = 1.0F / static_cast<float>(lowest_code(bits));
    std::array<uint16_t, kCapacity> scale;
    for (int at = 0; at < size_; ++at) scale[static_cast<std::size_t>(at)] = scale_of(at, unit);
    for (int at = 0; at < size_; ++at) {
      const uint16_t bits16 = scale[static_cast<std::size_t>(at)];
      uint8_t* to = codes + at * code_bytes(bits);
      std::memcpy(scales + at * kScaleBytes, &bits16, sizeof bits16);
      if (HWY_UNLIKELY(is_poisoned_scale(bits16) || (bits16 & 0x7FFFU) == 0)) {
        poisoned += is_poisoned_scale(bits16) ? 1 : 0;
        write_no_values(at, bits, to);
      } else {
        round(at, bits, bits16, to);
      }
    }
    std::array<uint32_t, kCapacity> rest;
    for (int at = 0; at < size_; ++at) {
      const auto index = static_cast<std::size_t>(at);
      if (residuals_[index]) rest[index] = hn::GetLane(hn::MaxOfLanes(U(), hn::Load(U(), largest_rest_[index].data())));
    }
    for (int at = 0; at < size_; ++at) {
      if (residuals_[static_cast<std::size_t>(at)]) keep_rest(at, rest[static_cast<std::size_t>(at)]);
    }
    size_ = 0;
    return poisoned;
  }

 private:
  [[nodiscard]] float* values_of(int at) { return values_[static_cast<std::size_t>(at)].data(); }

  // numerics.md section 2, step 3. unit: 1 / lowest code, a power of two, so the product is exact.
  [[nodiscard]] HWY_INLINE uint16_t scale_of(int at, float unit) {
    const auto index = static_cast<std::size_t>(at);
    const int32_t positive = std::max(hn::GetLane(hn::MaxOfLanes(I(), hn::Load(I(), positive_[index].data()))), 0);
    const uint32_t raw = hn::GetLane(hn::MaxOfLanes(U(), hn::Load(U(), negative_[index].data())));
    const auto negative = static_cast<int32_t>((raw >> 31) != 0 ? raw & 0x7FFFFFFFU : 0U);
    const auto magnitude = static_cast<uint32_t>(std::max(positive, negative));
    if (HWY_UNLIKELY(magnitude >= kPoisonBits)) return kPoisonedScale;
    if (HWY_UNLIKELY(magnitude < kZeroBits)) return 0;
    bool is_negative = negative > positive;
    if (HWY_UNLIKELY(negative == positive)) is_negative = first_is_negative(at, magnitude);
    const auto extremum = std::bit_cast<float>(magnitude | (is_negative ? 0x80000000U : 0U));
    return float_to_bf16_up(extremum * unit);
  }

  // Both signs reach the magnitude: the lowest index decides.
  [[nodiscard]] bool first_is_negative(int at, uint32_t magnitude) {
    const float* values = values_of(at);
    for (int i = 0;; ++i) {
      const float x = values[(i % 2) * kHalf + i / 2];
      if (magnitude_bits(x) == magnitude) return std::signbit(x);
    }
  }

  void write_no_values(int at, int bits, uint8_t* codes) {
    Group zero;
    each(zero, [=](V) { return hn::BitCast(F(), hn::Set(I(), -lowest_code(bits))); });
    pack(zero, bits, codes);
    std::fill_n(values_of(at), kGroup, 0.0F);
    largest_rest_[static_cast<std::size_t>(at)].fill(0);
  }

  // Steps 4 and 5. No code falls below the lowest: the scale was rounded up. code * scale is exact (8 and 8 bits), so a
  // fused multiply-add rounds as the specification's product and difference do.
  HWY_INLINE void round(int at, int bits, uint16_t scale_bits, uint8_t* codes) {
    float* values = values_of(at);
    const float scale = bf16_to_float(scale_bits);
    const V factor = hn::Set(F(), scale);
    const V inverse = hn::Set(F(), 1.0F / scale);
    // Even, so that ties still go to even codes; the low bits then are the stored value, code - lowest.
    const float zero = kRound - static_cast<float>(lowest_code(bits));
    const V shift = hn::Set(F(), zero);
    const V highest = hn::Set(F(), zero - static_cast<float>(lowest_code(bits)) - 1.0F);
    const bool with_rest = static_cast<bool>(residuals_[static_cast<std::size_t>(at)]);
    VU largest = hn::Zero(U());
    Group stored;
    const auto round_vector = [&](float* from) HWY_ATTR {
      const V v = hn::Load(F(), from);
      const V rounded = hn::Min(hn::Add(hn::Mul(v, inverse), shift), highest);
      if (with_rest) {
        const V rest = hn::NegMulAdd(hn::Sub(rounded, shift), factor, v);
        hn::Store(rest, F(), from);
        largest = hn::Max(largest, hn::And(bits_of(rest), hn::Set(U(), 0x7FFFFFFFU)));
      }
      return rounded;
    };
    for (int i = 0; i < vectors(); ++i) {
      stored.even.set(i, round_vector(values + i * lanes()));
      stored.odd.set(i, round_vector(values + kHalf + i * lanes()));
    }
    if (with_rest) hn::Store(largest, U(), largest_rest_[static_cast<std::size_t>(at)].data());
    pack(stored, bits, codes);
  }

  HWY_INLINE void keep_rest(int at, uint32_t magnitude) {
    Group rest;
    for (int i = 0; i < vectors(); ++i) {
      rest.even.set(i, hn::Load(F(), values_of(at) + i * lanes()));
      rest.odd.set(i, hn::Load(F(), values_of(at) + kHalf + i * lanes()));
    }
    keep(rest, magnitude, residuals_[static_cast<std::size_t>(at)]);
  }

  alignas(64) std::array<std::array<float, kGroup>, kCapacity> values_;  // then: what rounding left of them
  // Extremes of both signs and largest magnitude of what rounding left, as bits: a vector each, reduced for all groups
  // of the tile at once, since that takes long for one.
  alignas(64) std::array<std::array<int32_t, 16>, kCapacity> positive_;
  alignas(64) std::array<std::array<uint32_t, 16>, kCapacity> negative_;
  alignas(64) std::array<std::array<uint32_t, 16>, kCapacity> largest_rest_;
  std::array<GroupResidual, kCapacity> residuals_;
  int size_ = 0;
};

// ---- what the sweeps ask for ---------------------------------------------------------------------------------------

struct VectorKernel {
  using Group = HWY_NAMESPACE::Group;
  using Tile = HWY_NAMESPACE::Tile;

  static const char* name() { return &HWY_STR(HWY_NAMESPACE)[2]; }  // the namespace without N_

  static HWY_INLINE void zero(Group& group) {
    each(group, [](V) HWY_ATTR { return hn::Zero(F()); });
  }
  static HWY_INLINE void from(const float* floats, Group& group) { from_floats(floats, group); }
  static HWY_INLINE void to(const Group& group, float* floats) { to_floats(group, floats); }

  template <typename Element>
  static HWY_INLINE void load(const typename Element::Stored* stored, Group& group) {
    if constexpr (std::is_same_v<Element, Fp32>) {
      from_floats(stored, group);
    } else {
      for (int i = 0; i < vectors(); ++i) {
        const VU pairs = hn::BitCast(U(), hn::LoadU(hn::Repartition<uint16_t, U>(), stored + 2 * lanes() * i));
        group.even.set(i, widen_low(Element(), pairs));
        group.odd.set(i, widen_high(Element(), pairs));
      }
    }
  }

  template <typename Element>
  static HWY_INLINE void store(const Group& group, typename Element::Stored* stored) {
    store_as<Element, true>(group, stored);
  }
  template <typename Element>
  static HWY_INLINE void store_bounded(const Group& group, typename Element::Stored* stored) {
    store_as<Element, false>(group, stored);
  }

  static HWY_INLINE void rotate(Group& group) {
    each(group, [](V v) HWY_ATTR { return hn::Mul(v, hn::Set(F(), 0.125F)); });
    turn(group);
  }
  static HWY_INLINE void add(Group& group, const Group& addend) {
    for (int i = 0; i < vectors(); ++i) {
      group.even.set(i, hn::Add(group.even.get(i), addend.even.get(i)));
      group.odd.set(i, hn::Add(group.odd.get(i), addend.odd.get(i)));
    }
  }
  static HWY_INLINE void subtract(Group& group, const Group& subtrahend) {
    for (int i = 0; i < vectors(); ++i) {
      group.even.set(i, hn::Sub(group.even.get(i), subtrahend.even.get(i)));
      group.odd.set(i, hn::Sub(group.odd.get(i), subtrahend.odd.get(i)));
    }
  }
  static HWY_INLINE void divide(Group& group, float divisor) {
    each(group, [&](V v) HWY_ATTR { return hn::Div(v, hn::Set(F(), divisor)); });
  }

  static HWY_INLINE bool is_poisoned(const Group& group) { return largest_magnitude(group) >= kPoisonBits; }
  static HWY_INLINE bool all_finite(const Group& group) { return largest_magnitude(group) < kInfinityBits; }

  static HWY_INLINE void owed(const GroupResidual& residual, Group& group) {
    zero(group);
    add_owed(residual, group);
  }
  static HWY_INLINE void add_owed(const GroupResidual& residual, Group& group) {
    HWY_NAMESPACE::add_owed(residual, group);
  }
  static HWY_INLINE void keep(Group& rest, const GroupResidual& residual) {
    HWY_NAMESPACE::keep(rest, largest_magnitude(rest), residual);
  }

  static HWY_INLINE void decode(const uint8_t* codes, uint16_t scale_bits, int bits, Group& group) {
    unpack(codes, bits, group);
    to_values(group, bf16_to_float(scale_bits), bits);
  }
  // The factor 1/8 of the rotation goes into the scale: both products are exact.
  static HWY_INLINE void decode_turned(const uint8_t* codes, uint16_t scale_bits, int bits, Group& group) {
    unpack(codes, bits, group);
    to_values(group, bf16_to_float(scale_bits) * 0.125F, bits);
    turn(group);
  }

 private:
  template <typename Element, bool kWithNan>
  static HWY_INLINE void store_as(const Group& group, typename Element::Stored* stored) {
    if constexpr (std::is_same_v<Element, Fp32>) {
      if constexpr (kWithNan) {
        Group canonical = group;
        each(canonical, [](V v) HWY_ATTR { return hn::IfThenElse(hn::IsNaN(v), hn::Set(F(), Fp32::nan()), v); });
        to_floats(canonical, stored);
      } else {
        to_floats(group, stored);
      }
    } else {
      const hn::Repartition<uint16_t, U> halves;
      for (int i = 0; i < vectors(); ++i) {
        const VU even = narrowed<Element, kWithNan>(group.even.get(i));
        const VU odd = narrowed<Element, kWithNan>(group.odd.get(i));
        hn::StoreU(hn::BitCast(halves, odd_high(odd, hn::ShiftRight<16>(even))), halves, stored + 2 * lanes() * i);
      }
    }
  }
  template <typename Element, bool kWithNan>
  static HWY_INLINE VU narrowed(V v) {
    const VU high = narrow_high(Element(), v);
    if constexpr (kWithNan) return canonical<Element>(v, high);
    return high;
  }
};
