// Groups <-> bytes in memory: codes (FORMAT.md), residuals (residual.hpp), floats. Part of the vector kernel; included
// as kernel-inl.hpp is, before its tile.

// ---- floats in element order ---------------------------------------------------------------------------------------

HWY_INLINE void from_floats(const float* floats, Group& group) {
  for (int i = 0; i < vectors(); ++i) {
    V even;
    V odd;
    hn::LoadInterleaved2(F(), floats + 2 * lanes() * i, even, odd);
    group.even.set(i, even);
    group.odd.set(i, odd);
  }
}
HWY_INLINE void to_floats(const Group& group, float* floats) {
  for (int i = 0; i < vectors(); ++i) {
    hn::StoreInterleaved2(group.even.get(i), group.odd.get(i), F(), floats + 2 * lanes() * i);
  }
}

HWY_INLINE uint32_t largest_magnitude(const Group& group) {
  const VU magnitude = hn::Set(U(), 0x7FFFFFFFU);
  VU largest = hn::Zero(U());
  for (int i = 0; i < vectors(); ++i) {
    largest = hn::Max(largest, hn::Max(hn::And(bits_of(group.even.get(i)), magnitude),
                                       hn::And(bits_of(group.odd.get(i)), magnitude)));
  }
  return hn::GetLane(hn::MaxOfLanes(U(), largest));
}

// High half of each lane from one vector, low half from another; the same for the odd and even bytes.
HWY_INLINE VU odd_high(VU high, VU low) {
  const hn::Repartition<uint16_t, U> d;
  return hn::BitCast(U(), hn::OddEven(hn::BitCast(d, high), hn::BitCast(d, low)));
}
HWY_INLINE VU odd_bytes(VU odd, VU even) {
  const hn::Repartition<uint8_t, U> d;
  return hn::BitCast(U(), hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, even)));
}

// ---- narrow integers -----------------------------------------------------------------------------------------------

inline constexpr bool kFixedBlocks =
    !HWY_HAVE_SCALABLE && kMostLanes <= 8;  // at least 4 vectors a half, of 1 or 2 blocks

// The low `kBytes` bytes of the lanes of 4 / kBytes vectors, one vector after the other. Each lane of `packed` has them
// side by side, the first vector lowest.
template <int kBytes>
HWY_INLINE void store_packed(VU packed, uint8_t* to) {
  const hn::Repartition<uint8_t, U> d;
  alignas(16) static constexpr std::array<uint8_t, 16> kTranspose = [] {
    std::array<uint8_t, 16> index{};
    for (int vector = 0; vector < 4 / kBytes; ++vector) {
      for (int lane = 0; lane < 4; ++lane) {
        for (int byte = 0; byte < kBytes; ++byte) {
          index[vector * 4 * kBytes + lane * kBytes + byte] = static_cast<uint8_t>(lane * 4 + vector * kBytes + byte);
        }
      }
    }
    return index;
  }();
  auto bytes = hn::TableLookupBytes(hn::BitCast(d, packed), hn::LoadDup128(d, kTranspose.data()));
#if !HWY_HAVE_SCALABLE
  if constexpr (kMostLanes == 8) {  // 4 * kBytes bytes of each vector lie in each block
    alignas(32) static constexpr std::array<int32_t, 8> kBlocks = [] {
      std::array<int32_t, 8> index{};
      for (int to = 0; to < 8; ++to) {
        const int vector = to / (2 * kBytes);
        const int block = to / kBytes % 2;
        index[to] = block * 4 + vector * kBytes + to % kBytes;
      }
      return index;
    }();
    bytes = hn::BitCast(d, hn::TableLookupLanes(hn::BitCast(U(), bytes), hn::SetTableIndices(U(), kBlocks.data())));
  }
#endif
  hn::StoreU(bytes, d, to);
}

// ---- codes ---------------------------------------------------------------------------------------------------------

using Bytes = std::array<uint8_t, kGroup>;

// In the low byte of each lane: an even element in the low nibble, an odd one in the high. The lanes hold numbers below
// 16 in their low byte; what is in the others stays out of it.
HWY_INLINE VU pair_of_nibbles(const Group& stored, int i) {
  return hn::Or(bits_of(stored.even.get(i)), hn::ShiftLeft<4>(bits_of(stored.odd.get(i))));
}
// In the low half of each lane: the low bytes of an even and an odd element.
HWY_INLINE VU pair_of_bytes(const Group& stored, int i) {
  return odd_bytes(hn::ShiftLeft<8>(bits_of(stored.odd.get(i))), bits_of(stored.even.get(i)));
}

// Four bits are all there are: 5 and 6 bits come masked.
HWY_INLINE void pack_nibbles(const Group& stored, uint8_t* codes) {
  if constexpr (kFixedBlocks) {
    for (int i = 0; i < vectors(); i += 4) {
      const VU low = odd_bytes(hn::ShiftLeft<8>(pair_of_nibbles(stored, i + 1)), pair_of_nibbles(stored, i));
      const VU high = odd_bytes(hn::ShiftLeft<8>(pair_of_nibbles(stored, i + 3)), pair_of_nibbles(stored, i + 2));
      store_packed<1>(odd_high(hn::ShiftLeft<16>(high), low), codes + lanes() * i);
    }
  } else {
    const hn::Rebind<uint8_t, U> bytes;
    for (int i = 0; i < vectors(); ++i) {
      hn::StoreU(hn::TruncateTo(bytes, pair_of_nibbles(stored, i)), bytes, codes + lanes() * i);
    }
  }
}

// The low byte of every lane, in element order.
HWY_INLINE void pack_bytes(const Group& stored, uint8_t* codes) {
  if constexpr (kFixedBlocks) {
    for (int i = 0; i < vectors(); i += 2) {
      const VU pairs = odd_high(hn::ShiftLeft<16>(pair_of_bytes(stored, i + 1)), pair_of_bytes(stored, i));
      store_packed<2>(pairs, codes + 2 * lanes() * i);
    }
  } else {
    const hn::Rebind<uint16_t, U> words;
    const hn::Repartition<uint8_t, hn::Rebind<uint16_t, U>> bytes;
    for (int i = 0; i < vectors(); ++i) {
      const auto pairs = hn::TruncateTo(words, pair_of_bytes(stored, i));
      hn::StoreU(hn::BitCast(bytes, pairs), bytes, codes + 2 * lanes() * i);
    }
  }
}

HWY_INLINE void pack_plane(const Bytes& bytes, int bit, uint8_t* plane) {
  const hn::CappedTag<uint8_t, kGroup> d;
  const std::size_t step = hn::Lanes(d);
  for (std::size_t i = 0; i < kGroup; i += step) {
    const auto is_set = hn::TestBit(hn::LoadU(d, bytes.data() + i), hn::Set(d, static_cast<uint8_t>(1U << bit)));
    hn::StoreMaskBits(d, is_set, plane + i / 8);
  }
}

// The low `bits` bits of the lanes; the low byte holds no others.
HWY_INLINE void pack(Group& stored, int bits, uint8_t* codes) {
  if (bits == 8) return pack_bytes(stored, codes);
  if (bits == 4) return pack_nibbles(stored, codes);
  Bytes bytes;
  pack_bytes(stored, bytes.data());
  int bit = 0;
  if (bits > 4) {
    each(stored, [](V v) HWY_ATTR { return hn::BitCast(F(), hn::And(bits_of(v), hn::Set(U(), 15U))); });
    pack_nibbles(stored, codes);
    codes += kGroup / 2;
    bit = 4;
  }
  for (; bit < bits; ++bit, codes += kGroup / 8) pack_plane(bytes, bit, codes);
}

HWY_INLINE void unpack_nibbles(const uint8_t* codes, Group& stored) {
  const hn::Rebind<uint8_t, U> bytes;
  for (int i = 0; i < vectors(); ++i) {
    const VU pairs = hn::PromoteTo(U(), hn::LoadU(bytes, codes + lanes() * i));
    stored.even.set(i, hn::BitCast(F(), hn::And(pairs, hn::Set(U(), 15U))));
    stored.odd.set(i, hn::BitCast(F(), hn::ShiftRight<4>(pairs)));
  }
}

HWY_INLINE void unpack_bytes(const uint8_t* codes, Group& stored) {
  const hn::Rebind<uint16_t, U> words;
  const hn::Repartition<uint8_t, hn::Rebind<uint16_t, U>> bytes;
  for (int i = 0; i < vectors(); ++i) {
    const VU pairs = hn::PromoteTo(U(), hn::BitCast(words, hn::LoadU(bytes, codes + 2 * lanes() * i)));
    stored.even.set(i, hn::BitCast(F(), hn::And(pairs, hn::Set(U(), 255U))));
    stored.odd.set(i, hn::BitCast(F(), hn::ShiftRight<8>(pairs)));
  }
}

HWY_INLINE void unpack_plane(const uint8_t* plane, int bit, Bytes& bytes) {
  const hn::CappedTag<uint8_t, kGroup> d;
  const std::size_t step = hn::Lanes(d);
  for (std::size_t i = 0; i < kGroup; i += step) {
    std::array<uint8_t, 8> padded{};  // LoadMaskBits may read 8 bytes
    std::memcpy(padded.data(), plane + i / 8, std::max<std::size_t>(1, step / 8));
    const auto is_set = hn::LoadMaskBits(d, padded.data());
    const auto value = hn::IfThenElseZero(is_set, hn::Set(d, static_cast<uint8_t>(1U << bit)));
    hn::StoreU(hn::Or(hn::LoadU(d, bytes.data() + i), value), d, bytes.data() + i);
  }
}

HWY_INLINE void unpack(const uint8_t* codes, int bits, Group& stored) {
  if (bits == 4) return unpack_nibbles(codes, stored);
  if (bits == 8) return unpack_bytes(codes, stored);
  Group low;
  const uint8_t* planes = codes;
  int bit = 0;
  if (bits > 4) {
    unpack_nibbles(codes, low);
    planes += kGroup / 2;
    bit = 4;
  } else {
    each(low, [](V) { return hn::Zero(F()); });
  }
  Bytes bytes{};
  for (; bit < bits; ++bit, planes += kGroup / 8) unpack_plane(planes, bit, bytes);
  unpack_bytes(bytes.data(), stored);
  for (int i = 0; i < vectors(); ++i) {
    stored.even.set(i, hn::Or(stored.even.get(i), low.even.get(i)));
    stored.odd.set(i, hn::Or(stored.odd.get(i), low.odd.get(i)));
  }
}

// ---- residuals -----------------------------------------------------------------------------------------------------

// Adds the element's residual. The product of at most 16 and 8 bits is exact, so a fused multiply-add rounds as the
// specification's sum does.
HWY_INLINE void add_scaled(VI value, V scale, Half& half, int i) {
  half.set(i, hn::MulAdd(hn::ConvertTo(F(), value), scale, half.get(i)));
}

HWY_INLINE void add_owed(const GroupResidual& residual, Group& group) {
  if (residual.store == Store::kFp32) {
    Group e;
    from_floats(reinterpret_cast<const float*>(residual.values), e);
    for (int i = 0; i < vectors(); ++i) {
      group.even.set(i, hn::Add(group.even.get(i), e.even.get(i)));
      group.odd.set(i, hn::Add(group.odd.get(i), e.odd.get(i)));
    }
    return;
  }
  uint16_t scale_bits = 0;
  std::memcpy(&scale_bits, residual.scale, sizeof scale_bits);
  const V scale = hn::Set(F(), bf16_to_float(scale_bits));
  if (residual.store == Store::kInt8) {
    const hn::Rebind<int16_t, I> words;
    const auto* values = reinterpret_cast<const int16_t*>(residual.values);
    for (int i = 0; i < vectors(); ++i) {
      const VI pairs = hn::PromoteTo(I(), hn::LoadU(words, values + lanes() * i));
      add_scaled(hn::ShiftRight<24>(hn::ShiftLeft<24>(pairs)), scale, group.even, i);
      add_scaled(hn::ShiftRight<8>(pairs), scale, group.odd, i);
    }
  } else {
    const auto* values = reinterpret_cast<const int32_t*>(residual.values);
    for (int i = 0; i < vectors(); ++i) {
      const VI pairs = hn::LoadU(I(), values + lanes() * i);
      add_scaled(hn::ShiftRight<16>(hn::ShiftLeft<16>(pairs)), scale, group.even, i);
      add_scaled(hn::ShiftRight<16>(pairs), scale, group.odd, i);
    }
  }
}

// magnitude: the largest in `rest`, as bits. No value exceeds the integers' range: the scale was rounded up.
HWY_INLINE void keep(Group& rest, uint32_t magnitude, const GroupResidual& residual) {
  if (residual.store == Store::kFp32) return to_floats(rest, reinterpret_cast<float*>(residual.values));
  const uint16_t scale_bits = residual_scale(magnitude, residual.store);
  if (HWY_UNLIKELY(scale_bits == 0)) return clear_residual(residual);
  std::memcpy(residual.scale, &scale_bits, sizeof scale_bits);
  const V inverse = hn::Set(F(), 1.0F / bf16_to_float(scale_bits));
  const V shift = hn::Set(F(), kRound);
  each(rest, [&](V v) HWY_ATTR { return hn::Add(hn::Mul(v, inverse), shift); });
  if (residual.store == Store::kInt8) return pack_bytes(rest, reinterpret_cast<uint8_t*>(residual.values));
  auto* values = reinterpret_cast<uint32_t*>(residual.values);
  for (int i = 0; i < vectors(); ++i) {
    hn::StoreU(odd_high(hn::ShiftLeft<16>(bits_of(rest.odd.get(i))), bits_of(rest.even.get(i))), U(),
               values + lanes() * i);
  }
}
