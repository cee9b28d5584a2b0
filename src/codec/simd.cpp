// The vector codec: the sweeps over a kernel on Highway vectors, compiled once for each instruction set. Equal to the
// reference bit for bit.
//
// A group lies in registers as two halves, its even and its odd elements. So the first butterflies of the rotation
// (stride 1), the packing of nibbles and the widening of 16-bit elements need no shuffles: an even and an odd element
// share a byte of codes and a 32-bit word of bf16.
#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "codec/codec.hpp"
#include "codec/element.hpp"
#include "codec/fp_mode.hpp"
#include "codec/group.hpp"
#include "codec/simd.hpp"

// Highway has its reason to distrust emulated vectors on some compilers; ours are tested against the reference.
// Processors with SSSE3 but without SSE4 are rare; they take the emulated vectors.
#define HWY_BROKEN_EMU128 0
#if defined(ECHO_SIMD_FEW_TARGETS)  // sanitized builds: each target compiles for more than a minute there
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS HWY_SSSE3
#endif
#define HWY_WANT_AVX3_DL  // AVX-512 with the newer byte permutes

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace echo_comm::core {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "codec/sweep-inl.hpp"

class VectorKernel {
  using F = hn::CappedTag<float, 16>;
  using U = hn::RebindToUnsigned<F>;
  using I = hn::RebindToSigned<F>;
  using V = hn::Vec<F>;
  using VU = hn::Vec<U>;
  using VI = hn::Vec<I>;
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(F()));
  static constexpr int kVectors = kGroup / 2 / kLanes;  // of each half

 public:
  static const char* name() { return &HWY_STR(HWY_NAMESPACE)[2]; }  // the namespace without N_

  struct Group {
    V even[kVectors];
    V odd[kVectors];

    template <typename Body>
    HWY_INLINE void each(const Body& body) {
      for (V& v : even) v = body(v);
      for (V& v : odd) v = body(v);
    }
  };

  static HWY_INLINE Group zero() {
    Group group;
    group.each([](V) { return hn::Zero(F()); });
    return group;
  }

  static HWY_INLINE Group from(const float* floats) {
    Group group;
    for (int i = 0; i < kVectors; ++i) hn::LoadInterleaved2(F(), floats + 2 * kLanes * i, group.even[i], group.odd[i]);
    return group;
  }
  static HWY_INLINE void to(const Group& group, float* floats) {
    for (int i = 0; i < kVectors; ++i) {
      hn::StoreInterleaved2(group.even[i], group.odd[i], F(), floats + 2 * kLanes * i);
    }
  }

  template <typename Element>
  static HWY_INLINE Group load(const typename Element::Stored* stored) {
    if constexpr (std::is_same_v<Element, Fp32>) {
      return from(stored);
    } else {
      Group group;
      for (int i = 0; i < kVectors; ++i) {
        const VU pairs = hn::BitCast(U(), hn::LoadU(hn::Repartition<uint16_t, U>(), stored + 2 * kLanes * i));
        group.even[i] = widen(Element(), hn::And(pairs, hn::Set(U(), 0xFFFFU)));
        group.odd[i] = widen(Element(), hn::ShiftRight<16>(pairs));
      }
      return group;
    }
  }
  template <typename Element>
  static HWY_INLINE void store(const Group& group, typename Element::Stored* stored) {
    if constexpr (std::is_same_v<Element, Fp32>) {
      Group canonical = group;
      canonical.each([](V v) { return hn::IfThenElse(hn::IsNaN(v), hn::Set(F(), Fp32::nan()), v); });
      to(canonical, stored);
    } else {
      for (int i = 0; i < kVectors; ++i) {
        const VU pairs = hn::Or(narrow(Element(), group.even[i]), hn::ShiftLeft<16>(narrow(Element(), group.odd[i])));
        const hn::Repartition<uint16_t, U> words;
        hn::StoreU(hn::BitCast(words, pairs), words, stored + 2 * kLanes * i);
      }
    }
  }

  static HWY_INLINE void rotate(Group& group) {
    group.each([](V v) { return hn::Mul(v, hn::Set(F(), 0.125F)); });
    for (int i = 0; i < kVectors; ++i) butterfly(group.even[i], group.odd[i]);  // stride 1
    turn_half(group.even);
    turn_half(group.odd);
  }

  static HWY_INLINE void add(Group& group, const float* addend) { add(group, from(addend)); }
  static HWY_INLINE void add(Group& group, const Group& addend) {
    for (int i = 0; i < kVectors; ++i) {
      group.even[i] = hn::Add(group.even[i], addend.even[i]);
      group.odd[i] = hn::Add(group.odd[i], addend.odd[i]);
    }
  }
  static HWY_INLINE void divide(Group& group, float divisor) {
    group.each([=](V v) { return hn::Div(v, hn::Set(F(), divisor)); });
  }

  static HWY_INLINE bool is_poisoned(const Group& group) { return largest_magnitude(group) >= kPoisonBits; }
  static HWY_INLINE bool all_finite(const Group& group) { return largest_magnitude(group) < kInfinityBits; }

  static HWY_INLINE uint16_t encode(const Group& group, int bits, uint8_t* codes, float* residual) {
    const uint32_t magnitude = largest_magnitude(group);
    if (HWY_UNLIKELY(magnitude >= kPoisonBits || magnitude < kZeroBits)) {
      Floats floats;
      to(group, floats.data());
      return encode_group(floats, bits, codes, residual);
    }
    const int lowest = lowest_code(bits);
    const float extremum = first_with_magnitude(group, std::bit_cast<float>(magnitude));
    const uint16_t scale_bits = float_to_bf16_up(extremum / static_cast<float>(lowest));
    const V scale = hn::Set(F(), bf16_to_float(scale_bits));
    const V inverse = hn::Set(F(), 1.0F / bf16_to_float(scale_bits));

    Stored stored;
    Group rest;
    for (int i = 0; i < kVectors; ++i) {
      round(group.even[i], inverse, scale, lowest, stored.even[i], rest.even[i]);
      round(group.odd[i], inverse, scale, lowest, stored.odd[i], rest.odd[i]);
    }
    if (residual != nullptr) to(rest, residual);
    pack(stored, bits, codes);
    return scale_bits;
  }

  static HWY_INLINE Group decode(const uint8_t* codes, uint16_t scale_bits, int bits) {
    const Stored stored = unpack(codes, bits);
    const V scale = hn::Set(F(), bf16_to_float(scale_bits));
    const VI lowest = hn::Set(I(), lowest_code(bits));
    Group group;
    for (int i = 0; i < kVectors; ++i) {
      group.even[i] = hn::Mul(hn::ConvertTo(F(), hn::Add(hn::BitCast(I(), stored.even[i]), lowest)), scale);
      group.odd[i] = hn::Mul(hn::ConvertTo(F(), hn::Add(hn::BitCast(I(), stored.odd[i]), lowest)), scale);
    }
    return group;
  }

 private:
  using Floats = std::array<float, kGroup>;

  // Stored values of a group, one in each 32-bit lane.
  struct Stored {
    VU even[kVectors];
    VU odd[kVectors];
  };

  // ---- 16-bit elements in the low half of each lane; element.hpp has the same in scalar code ----

  static HWY_INLINE V widen(Bf16 /*type*/, VU stored) { return hn::BitCast(F(), hn::ShiftLeft<16>(stored)); }
  static HWY_INLINE V widen(Fp16 /*type*/, VU stored) {
    const VU magnitude = hn::And(stored, hn::Set(U(), 0x7FFFU));
    const VU sign = hn::ShiftLeft<16>(hn::Xor(stored, magnitude));
    // The exponent of fp16, read as that of fp32, is 112 too small; denormals become denormals and are scaled too.
    const V scaled = hn::Mul(hn::BitCast(F(), hn::ShiftLeft<13>(magnitude)), hn::Set(F(), 0x1p112F));
    const VU special = hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(U(), 0x7F800000U));
    const auto is_special = hn::Gt(hn::BitCast(I(), magnitude), hn::Set(I(), 0x7BFF));
    const VU value = hn::IfThenElse(hn::RebindMask(U(), is_special), special, hn::BitCast(U(), scaled));
    return hn::BitCast(F(), hn::Or(value, sign));
  }

  static HWY_INLINE VU narrow(Bf16 /*type*/, V v) {
    const VU bits = hn::BitCast(U(), v);
    const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(U(), 1U));
    const VU rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(U(), 0x7FFFU)), odd));
    return hn::IfThenElse(hn::RebindMask(U(), hn::IsNaN(v)), hn::Set(U(), uint32_t{kCanonicalBf16Nan}), rounded);
  }
  static HWY_INLINE VU narrow(Fp16 /*type*/, V v) {
    const VU bits = hn::BitCast(U(), v);
    const VU magnitude = hn::And(bits, hn::Set(U(), 0x7FFFFFFFU));
    const VU sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(U(), 0x8000U));
    const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(U(), 1U));
    const VU normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(U(), 0xC8000FFFU)), odd));
    const V shifted = hn::Add(hn::BitCast(F(), magnitude), hn::Set(F(), 0.5F));
    const VU denormal = hn::Sub(hn::BitCast(U(), shifted), hn::Set(U(), 0x3F000000U));
    const VU infinity = hn::Set(U(), 0x7C00U);
    const VU finite = hn::IfThenElse(less(magnitude, 0x38800000), denormal, normal);
    const VU value = hn::Or(hn::IfThenElse(less(magnitude, 0x477FF000), finite, infinity), sign);
    return hn::IfThenElse(hn::RebindMask(U(), hn::IsNaN(v)), hn::Set(U(), uint32_t{kCanonicalFp16Nan}), value);
  }
  static HWY_INLINE hn::Mask<U> less(VU magnitude, int32_t limit) {
    return hn::RebindMask(U(), hn::Lt(hn::BitCast(I(), magnitude), hn::Set(I(), limit)));
  }

  // ---- rotation ----

  static HWY_INLINE void butterfly(V& a, V& b) {
    const V sum = hn::Add(a, b);
    b = hn::Sub(a, b);
    a = sum;
  }

  // Butterfly between lanes `kDistance` apart: the first of a pair gets a + b = b + a * 1, the second a - b = a + b * -1.
  // A multiply-add with a factor of +-1 rounds once, as the addition does.
  template <int kDistance>
  static HWY_INLINE V butterfly_in(V v) {
    alignas(64) static constexpr std::array<float, 16> kSigns = signs(kDistance);
    return hn::MulAdd(v, hn::Load(F(), kSigns.data()), swap<kDistance>(v));
  }
  static constexpr std::array<float, 16> signs(int distance) {
    std::array<float, 16> result{};
    for (int lane = 0; lane < 16; ++lane) result[lane] = (lane & distance) == 0 ? 1.0F : -1.0F;
    return result;
  }
  template <int kDistance>
  static HWY_INLINE V swap(V v) {
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

  // Strides 2 to 32 of the group: distances 1 to 16 within a half. Those inside a vector first, in this order.
  static HWY_INLINE void turn_half(V (&half)[kVectors]) {
    for (V& v : half) {
      v = butterfly_in<1>(v);
      v = butterfly_in<2>(v);
      if constexpr (kLanes > 4) v = butterfly_in<4>(v);
      if constexpr (kLanes > 8) v = butterfly_in<8>(v);
    }
    for (int stride = 1; stride < kVectors; stride *= 2) {
      for (int i = 0; i < kVectors; ++i) {
        if ((i & stride) == 0) butterfly(half[i], half[i + stride]);
      }
    }
  }

  // ---- extremum ----

  static HWY_INLINE uint32_t largest_magnitude(const Group& group) {
    VI largest = hn::Zero(I());
    for (int i = 0; i < kVectors; ++i) {
      largest = hn::Max(largest, hn::Max(magnitude(group.even[i]), magnitude(group.odd[i])));
    }
    return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I(), largest)));
  }
  static HWY_INLINE VI magnitude(V v) { return hn::And(hn::BitCast(I(), v), hn::Set(I(), 0x7FFFFFFF)); }

  // The sign decides; only when both signs occur does the order of the elements matter.
  static HWY_INLINE float first_with_magnitude(const Group& group, float magnitude) {
    const V positive = hn::Set(F(), magnitude);
    const V negative = hn::Set(F(), -magnitude);
    hn::Mask<F> any_positive = hn::Eq(group.even[0], positive);
    hn::Mask<F> any_negative = hn::Eq(group.even[0], negative);
    for (int i = 0; i < kVectors; ++i) {
      any_positive = hn::Or(any_positive, hn::Or(hn::Eq(group.even[i], positive), hn::Eq(group.odd[i], positive)));
      any_negative = hn::Or(any_negative, hn::Or(hn::Eq(group.even[i], negative), hn::Eq(group.odd[i], negative)));
    }
    if (hn::AllFalse(F(), any_negative)) return magnitude;
    if (hn::AllFalse(F(), any_positive)) return -magnitude;
    Floats floats;
    to(group, floats.data());
    return *std::find_if(floats.begin(), floats.end(), [=](float x) { return x == magnitude || x == -magnitude; });
  }

  // ---- rounding ----

  // Stored value and what it does not say. code * scale is exact (8 and 8 bits), so a fused multiply-add rounds as the
  // specification's product and difference do.
  static HWY_INLINE void round(V v, V inverse, V scale, int lowest, VU& stored, V& rest) {
    const VI low = hn::Set(I(), lowest);
    const VI nearest = hn::NearestInt(hn::Mul(v, inverse));
    const VI code = hn::Min(hn::Max(nearest, low), hn::Set(I(), -lowest - 1));
    stored = hn::BitCast(U(), hn::Sub(code, low));
    rest = hn::NegMulAdd(hn::ConvertTo(F(), code), scale, v);
  }

  // ---- packing: FORMAT.md ----

  using Bytes = std::array<uint8_t, kGroup>;

  static HWY_INLINE void pack(const Stored& stored, int bits, uint8_t* codes) {
    if (bits == 8) return pack_bytes(stored, codes);
    int bit = 0;
    if (bits >= 4) {
      pack_nibbles(stored, codes);
      codes += kGroup / 2;
      bit = 4;
    }
    if (bit == bits) return;
    Bytes bytes;
    pack_bytes(stored, bytes.data());
    for (; bit < bits; ++bit, codes += kGroup / 8) pack_plane(bytes, bit, codes);
  }

  static HWY_INLINE void pack_nibbles(const Stored& stored, uint8_t* codes) {
    const hn::Rebind<uint8_t, U> bytes;
    const VU nibble = hn::Set(U(), 15U);
    for (int i = 0; i < kVectors; ++i) {
      const VU pair = hn::Or(hn::And(stored.even[i], nibble), hn::ShiftLeft<4>(hn::And(stored.odd[i], nibble)));
      hn::StoreU(hn::TruncateTo(bytes, pair), bytes, codes + kLanes * i);
    }
  }

  static HWY_INLINE void pack_bytes(const Stored& stored, uint8_t* codes) {
    const hn::Rebind<uint16_t, U> words;
    for (int i = 0; i < kVectors; ++i) {
      const auto pairs = hn::TruncateTo(words, hn::Or(stored.even[i], hn::ShiftLeft<8>(stored.odd[i])));
      const hn::Repartition<uint8_t, hn::Rebind<uint16_t, U>> bytes;
      hn::StoreU(hn::BitCast(bytes, pairs), bytes, codes + 2 * kLanes * i);
    }
  }

  static HWY_INLINE void pack_plane(const Bytes& bytes, int bit, uint8_t* plane) {
    const hn::CappedTag<uint8_t, kGroup> d;
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t i = 0; i < kGroup; i += lanes) {
      const auto is_set = hn::TestBit(hn::LoadU(d, bytes.data() + i), hn::Set(d, static_cast<uint8_t>(1U << bit)));
      hn::StoreMaskBits(d, is_set, plane + i / 8);
    }
  }

  static HWY_INLINE Stored unpack(const uint8_t* codes, int bits) {
    if (bits == 4) return unpack_nibbles(codes);
    if (bits == 8) return unpack_bytes(codes);
    Stored stored;
    const uint8_t* planes = codes;
    int bit = 0;
    if (bits > 4) {
      stored = unpack_nibbles(codes);
      planes += kGroup / 2;
      bit = 4;
    } else {
      for (int i = 0; i < kVectors; ++i) stored.even[i] = stored.odd[i] = hn::Zero(U());
    }
    Bytes bytes{};
    for (; bit < bits; ++bit, planes += kGroup / 8) unpack_plane(planes, bit, bytes);
    const Stored high = unpack_bytes(bytes.data());
    for (int i = 0; i < kVectors; ++i) {
      stored.even[i] = hn::Or(stored.even[i], high.even[i]);
      stored.odd[i] = hn::Or(stored.odd[i], high.odd[i]);
    }
    return stored;
  }

  static HWY_INLINE Stored unpack_nibbles(const uint8_t* codes) {
    const hn::Rebind<uint8_t, U> bytes;
    Stored stored;
    for (int i = 0; i < kVectors; ++i) {
      const VU pairs = hn::PromoteTo(U(), hn::LoadU(bytes, codes + kLanes * i));
      stored.even[i] = hn::And(pairs, hn::Set(U(), 15U));
      stored.odd[i] = hn::ShiftRight<4>(pairs);
    }
    return stored;
  }

  static HWY_INLINE Stored unpack_bytes(const uint8_t* codes) {
    const hn::Rebind<uint16_t, U> words;
    const hn::Repartition<uint8_t, hn::Rebind<uint16_t, U>> bytes;
    Stored stored;
    for (int i = 0; i < kVectors; ++i) {
      const VU pairs = hn::PromoteTo(U(), hn::BitCast(words, hn::LoadU(bytes, codes + 2 * kLanes * i)));
      stored.even[i] = hn::And(pairs, hn::Set(U(), 255U));
      stored.odd[i] = hn::ShiftRight<8>(pairs);
    }
    return stored;
  }

  static HWY_INLINE void unpack_plane(const uint8_t* plane, int bit, Bytes& bytes) {
    const hn::CappedTag<uint8_t, kGroup> d;
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t i = 0; i < kGroup; i += lanes) {
      std::array<uint8_t, 8> padded{};  // LoadMaskBits may read 8 bytes
      std::memcpy(padded.data(), plane + i / 8, std::max<std::size_t>(1, lanes / 8));
      const auto is_set = hn::LoadMaskBits(d, padded.data());
      const auto value = hn::IfThenElseZero(is_set, hn::Set(d, static_cast<uint8_t>(1U << bit)));
      hn::StoreU(hn::Or(hn::LoadU(d, bytes.data() + i), value), d, bytes.data() + i);
    }
  }
};

}  // namespace

const Codec& vector_codec() {
  static const SweepCodec<VectorKernel> codec;
  return codec;
}

}  // namespace HWY_NAMESPACE
}  // namespace echo_comm::core
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace echo_comm::core {
namespace {

// What the instruction sets above need, beyond what Highway's attributes of them imply. Asked from the compiler's
// run-time, so that Highway stays a matter of headers and the library needs no other library.
#if HWY_ARCH_X86
// cpuid: F16C and VAES are names that not every compiler's run-time knows.
bool cpuid_bit(unsigned leaf, bool ecx_word, int bit) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(leaf, 0, &a, &b, &c, &d) == 0) return false;
  return (((ecx_word ? c : b) >> bit) & 1U) != 0;
}
bool has_f16c() { return cpuid_bit(1, true, 29); }
bool has_vaes() { return cpuid_bit(7, true, 9); }
[[maybe_unused]] bool has_sse4() {
  return __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
         __builtin_cpu_supports("aes");
}
[[maybe_unused]] bool has_avx2() {
  return has_sse4() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_f16c();
}
[[maybe_unused]] bool has_avx3() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd");
}
[[maybe_unused]] bool has_avx3_dl() {
  return has_avx3() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("vpclmulqdq") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
         __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bitalg") && has_vaes();
}
#endif

}  // namespace

std::vector<const Codec*> vector_codecs() {
  std::vector<const Codec*> codecs;
#if HWY_ARCH_X86
#if HWY_TARGETS & HWY_AVX3_DL
  if (has_avx3_dl()) codecs.push_back(&N_AVX3_DL::vector_codec());
#endif
#if HWY_TARGETS & HWY_AVX3
  if (has_avx3()) codecs.push_back(&N_AVX3::vector_codec());
#endif
#if HWY_TARGETS & HWY_AVX2
  if (has_avx2()) codecs.push_back(&N_AVX2::vector_codec());
#endif
#if HWY_TARGETS & HWY_SSE4
  if (has_sse4()) codecs.push_back(&N_SSE4::vector_codec());
#endif
#endif
#if HWY_TARGETS & HWY_NEON
  codecs.push_back(&N_NEON::vector_codec());  // part of every 64-bit Arm processor
#endif
#if HWY_TARGETS & HWY_EMU128
  codecs.push_back(&N_EMU128::vector_codec());
#endif
  return codecs;
}

}  // namespace echo_comm::core

#endif
