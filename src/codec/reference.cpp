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

  static Group zero() { return {}; }

  template <typename Element>
  static Group load(const typename Element::Stored* stored) {
    Group v;
    for (int i = 0; i < kGroup; ++i) v[i] = Element::load(stored[i]);
    return v;
  }
  template <typename Element>
  static void store(const Group& v, typename Element::Stored* stored) {
    for (int i = 0; i < kGroup; ++i) stored[i] = Element::store(v[i]);
  }
  static Group from(const float* floats) { return load<Fp32>(floats); }
  static void to(const Group& v, float* floats) { std::copy(v.begin(), v.end(), floats); }

  static void rotate(Group& v) { core::rotate(v); }
  static void add(Group& v, const float* addend) { core::add(v, addend); }
  static void add(Group& v, const Group& addend) { core::add(v, addend.data()); }
  static void divide(Group& v, float divisor) {
    for (float& x : v) x /= divisor;
  }
  static bool is_poisoned(const Group& v) { return core::is_poisoned(v); }
  static bool all_finite(const Group& v) { return core::all_finite(v); }

  static uint16_t encode(const Group& v, int bits, uint8_t* codes, float* residual) {
    return encode_group(v, bits, codes, residual);
  }
  static Group decode(const uint8_t* codes, uint16_t scale, int bits) {
    Group v;
    decode_group(codes, scale, bits, v);
    return v;
  }
};

}  // namespace

const Codec& reference_codec() {
  static const SweepCodec<ReferenceKernel> codec;
  return codec;
}

}  // namespace echo_comm::core
