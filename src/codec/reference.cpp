// The scalar reference codec: the sweeps over the plain functions of group.hpp, which are the specification in code.
#include <algorithm>
#include <array>
#include <cstring>

#include "codec/codec.hpp"
#include "codec/element.hpp"
#include "codec/fp_mode.hpp"
#include "codec/group.hpp"

namespace echo_comm::core {
namespace {

#include "codec/sweep-inl.hpp"

struct ReferenceKernel {
  static const char* name() { return "reference"; }
  using Group = std::array<float, kGroup>;

  static void zero(Group& v) { v = {}; }

  template <typename Element>
  static void load(const typename Element::Stored* stored, Group& v) {
    for (int i = 0; i < kGroup; ++i) v[i] = Element::load(stored[i]);
  }
  template <typename Element>
  static void store(const Group& v, typename Element::Stored* stored) {
    for (int i = 0; i < kGroup; ++i) stored[i] = Element::store(v[i]);
  }
  template <typename Element>
  static void store_bounded(const Group& v, typename Element::Stored* stored) {
    store<Element>(v, stored);
  }
  static void from(const float* floats, Group& v) { load<Fp32>(floats, v); }
  static void to(const Group& v, float* floats) { std::copy(v.begin(), v.end(), floats); }

  static void rotate(Group& v) { core::rotate(v); }
  static void add(Group& v, const Group& addend) { core::add(v, addend.data()); }
  static void subtract(Group& v, const Group& subtrahend) {
    for (int i = 0; i < kGroup; ++i) v[i] -= subtrahend[i];
  }
  static void divide(Group& v, float divisor) {
    for (float& x : v) x /= divisor;
  }
  static bool is_poisoned(const Group& v) { return core::is_poisoned(v); }
  static bool all_finite(const Group& v) { return core::all_finite(v); }

  static void owed(const GroupResidual& residual, Group& e) { load_residual(residual, e); }
  static void add_owed(const GroupResidual& residual, Group& v) {
    Group e;
    owed(residual, e);
    add(v, e);
  }
  static void keep(const Group& e, const GroupResidual& residual) { store_residual(e, residual); }

  // One group at a time.
  class Tile {
   public:
    void put(const Group& v, const GroupResidual& residual) {
      v_ = v;
      residual_ = residual;
      size_ = 1;
    }
    [[nodiscard]] int size() const { return size_; }
    [[nodiscard]] bool full() const { return size_ == 1; }

    int64_t encode(int bits, uint8_t* codes, std::byte* scales) {
      if (size_ == 0) return 0;
      size_ = 0;
      Group rest;
      const uint16_t scale = encode_group(v_, bits, codes, residual_ ? rest.data() : nullptr);
      std::memcpy(scales, &scale, sizeof scale);
      if (residual_) store_residual(rest, residual_);
      return is_poisoned_scale(scale) ? 1 : 0;
    }

   private:
    Group v_;
    GroupResidual residual_;
    int size_ = 0;
  };

  static void decode(const uint8_t* codes, uint16_t scale, int bits, Group& v) { decode_group(codes, scale, bits, v); }
  static void decode_turned(const uint8_t* codes, uint16_t scale, int bits, Group& v) {
    decode(codes, scale, bits, v);
    rotate(v);
  }
};

}  // namespace

const Codec& reference_codec() {
  static const SweepCodec<ReferenceKernel> codec;
  return codec;
}

}  // namespace echo_comm::core
