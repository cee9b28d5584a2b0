// The scalar reference codec: numerics.md sections 2 and 3, group by group. Coded groups and exact groups differ only
// in how a group is read from and written to the wire.
#include <algorithm>
#include <array>
#include <cstring>

#include "codec/codec.hpp"
#include "codec/element.hpp"
#include "codec/fp_mode.hpp"
#include "codec/group.hpp"

namespace echo_comm::core {
namespace {

using GroupArray = std::array<float, kGroup>;

// Payload of a coded range: all codes, then all scales.
template <typename Byte>
struct CodedPayload {
  Byte* base;
  int64_t groups;
  int bits;

  [[nodiscard]] auto* codes(int64_t index) const {
    using Code = std::conditional_t<std::is_const_v<Byte>, const uint8_t, uint8_t>;
    return reinterpret_cast<Code*>(base + index * code_bytes(bits));
  }
  [[nodiscard]] Byte* scale_at(int64_t index) const { return base + groups * code_bytes(bits) + index * kScaleBytes; }
  [[nodiscard]] uint16_t scale(int64_t index) const {
    uint16_t bits16 = 0;
    std::memcpy(&bits16, scale_at(index), sizeof bits16);
    return bits16;
  }
  void set_scale(int64_t index, uint16_t bits16) const { std::memcpy(scale_at(index), &bits16, sizeof bits16); }
};

void rotate_if(bool rotation, GroupArray& v) {
  if (rotation) rotate(v);
}

void clear(float* residual) {
  if (residual != nullptr) std::fill_n(residual, kGroup, 0.0F);
}

template <typename Element>
class Sweep {
 public:
  using Stored = typename Element::Stored;

  Sweep(const Block& block, const Residuals& residuals) : block_(block), residuals_(residuals) {}

  int64_t encode(const Stored* in, std::byte* payload) const {
    int64_t poisoned = 0;
    const CodedPayload<std::byte> coded = coded_payload(payload);
    for (int64_t group = block_.range.begin; group < block_.range.end; ++group) {
      const int64_t index = group - block_.range.begin;
      if (block_.format.exact()) {
        encode_exact(in, group, payload);
        continue;
      }
      GroupArray v = own_addend(in, group);
      if (float* owner = residuals_.owner_of(group); owner != nullptr) {
        add(v, owner);
        clear(owner);
      }
      const uint16_t scale = encode_group(v, bits(), coded.codes(index), residuals_.sender_of(group));
      coded.set_scale(index, scale);
      poisoned += is_poisoned_scale(scale) ? 1 : 0;
    }
    return poisoned;
  }

  int64_t reduce(Payloads payloads, const Stored* in, const ReduceOptions& options, std::byte* payload) const {
    int64_t poisoned = 0;
    const CodedPayload<std::byte> coded = coded_payload(payload);
    for (int64_t group = block_.range.begin; group < block_.range.end; ++group) {
      GroupArray total{};
      for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
        const bool own = static_cast<int>(rank) == options.rank;
        const GroupArray addend =
            own ? reduce_own_addend(in, group, options.batch_invariant) : received(payloads[rank], group);
        add(total, addend.data());
      }
      float* owner = residuals_.owner_of(group);
      if (block_.format.exact()) {
        finish_exact_sum(total, owner, options.divisor);
        store_exact(total, group, payload);
        continue;
      }
      if (owner != nullptr) add(total, owner);
      const int64_t index = group - block_.range.begin;
      const uint16_t scale = encode_group(total, bits(), coded.codes(index), owner);
      coded.set_scale(index, scale);
      poisoned += is_poisoned_scale(scale) ? 1 : 0;
    }
    return poisoned;
  }

  int64_t decode(Payloads payloads, int divisor, Stored* out) const {
    int64_t poisoned = 0;
    for (int64_t group = block_.range.begin; group < block_.range.end; ++group) {
      const bool bad =
          block_.format.exact() ? !decode_exact(payloads[0], group, out) : !decode_coded(payloads, group, divisor, out);
      if (!bad) continue;
      clear(residuals_.sender_of(group));
      clear(residuals_.owner_of(group));
      poisoned += block_.format.exact() ? 0 : 1;
    }
    return poisoned;
  }

 private:
  [[nodiscard]] int bits() const { return block_.format.bits; }
  [[nodiscard]] bool rotation() const { return block_.format.rotation; }

  template <typename Byte>
  CodedPayload<Byte> coded_payload(Byte* base) const {
    return {base, block_.range.size(), bits()};
  }

  GroupArray load(const Stored* in, int64_t group) const {
    GroupArray v{};
    const GroupPlace place = block_.layout.place(group);
    for (int i = 0; i < place.valid; ++i) v[i] = Element::load(in[place.first + i]);
    return v;
  }

  // Hx + e; on the exact path x + He, in the tensor's own domain.
  GroupArray own_addend(const Stored* in, int64_t group) const {
    GroupArray v = load(in, group);
    const float* sender = residuals_.sender_of(group);
    if (!block_.format.exact()) {
      rotate_if(rotation(), v);
      if (sender != nullptr) add(v, sender);
    } else if (sender != nullptr) {
      add(v, turned(sender).data());
    }
    return v;
  }

  GroupArray turned(const float* residual) const {
    GroupArray v;
    std::copy_n(residual, kGroup, v.begin());
    rotate_if(rotation(), v);
    return v;
  }

  // The owner's own addend enters the sum unrounded, so nothing of it is owed; batch invariant: coded like the others.
  GroupArray reduce_own_addend(const Stored* in, int64_t group, bool batch_invariant) const {
    GroupArray v = own_addend(in, group);
    if (batch_invariant && !block_.format.exact()) {
      std::array<uint8_t, kGroup> codes;
      const uint16_t scale = encode_group(v, bits(), codes.data(), residuals_.sender_of(group));
      decode_group(codes.data(), scale, bits(), v);
    } else {
      clear(residuals_.sender_of(group));
    }
    return v;
  }

  GroupArray received(const std::byte* payload, int64_t group) const {
    if (block_.format.exact()) return load_exact(payload, group);
    const CodedPayload<const std::byte> coded = coded_payload(payload);
    const int64_t index = group - block_.range.begin;
    GroupArray v;
    decode_group(coded.codes(index), coded.scale(index), bits(), v);
    return v;
  }

  // False: the group is poisoned, out holds NaN.
  bool decode_coded(Payloads payloads, int64_t group, int divisor, Stored* out) const {
    GroupArray v = received(payloads[0], group);
    bool poisoned = !all_finite(v);  // a coded sum was checked by its owner, only its scale says so
    if (payloads.size() > 1) {
      GroupArray total{};
      add(total, v.data());
      for (const std::byte* payload : payloads.subspan(1)) add(total, received(payload, group).data());
      v = total;
      poisoned = is_poisoned(v);
    }
    const GroupPlace place = block_.layout.place(group);
    if (poisoned) {
      std::fill_n(out + place.first, place.valid, Element::nan());
      return false;
    }
    rotate_if(rotation(), v);
    if (divisor != 1) divide(v, divisor);
    for (int i = 0; i < place.valid; ++i) out[place.first + i] = Element::store(v[i]);
    return true;
  }

  static void divide(GroupArray& v, int divisor) {
    for (float& x : v) x /= static_cast<float>(divisor);
  }

  // ---- exact path ----

  [[nodiscard]] int64_t exact_offset(int64_t group) const {
    const int64_t first = block_.layout.first_element(block_.range.begin);
    return (block_.layout.place(group).first - first) * static_cast<int64_t>(sizeof(Stored));
  }

  // r = round(x + He) in the type, saturating where x is finite; e = H(x + He - r).
  void encode_exact(const Stored* in, int64_t group, std::byte* payload) const {
    const GroupPlace place = block_.layout.place(group);
    float* sender = residuals_.sender_of(group);
    if (sender == nullptr) {
      if (place.valid > 0) {
        std::memcpy(payload + exact_offset(group), in + place.first, place.valid * sizeof(Stored));
      }
      return;
    }
    const GroupArray x = load(in, group);
    const GroupArray owed = turned(sender);
    std::array<Stored, kGroup> sent;
    GroupArray rest;
    for (int i = 0; i < kGroup; ++i) {
      float value = x[i] + owed[i];
      float nearest = value;
      if (is_finite(x[i])) {  // what is owed never turns a finite value into an infinity
        value = std::clamp(value, -Fp32::kMax, Fp32::kMax);
        nearest = std::clamp(value, -Element::kMax, Element::kMax);
      }
      sent[i] = Element::store(nearest);
      rest[i] = value - Element::load(sent[i]);
    }
    rotate_if(rotation(), rest);
    std::copy(rest.begin(), rest.end(), sender);
    std::memcpy(payload + exact_offset(group), sent.data(), place.valid * sizeof(Stored));
  }

  GroupArray load_exact(const std::byte* payload, int64_t group) const {
    GroupArray v{};
    const int valid = block_.layout.place(group).valid;
    std::array<Stored, kGroup> stored;
    std::memcpy(stored.data(), payload + exact_offset(group), valid * sizeof(Stored));
    for (int i = 0; i < valid; ++i) v[i] = Element::load(stored[i]);
    return v;
  }

  void finish_exact_sum(GroupArray& total, float* owner, int divisor) const {
    if (owner != nullptr) {
      add(total, turned(owner).data());
      clear(owner);
    }
    if (divisor != 1) divide(total, divisor);
  }

  void store_exact(const GroupArray& total, int64_t group, std::byte* payload) const {
    const int valid = block_.layout.place(group).valid;
    std::array<Stored, kGroup> stored;
    for (int i = 0; i < valid; ++i) stored[i] = Element::store(total[i]);
    std::memcpy(payload + exact_offset(group), stored.data(), valid * sizeof(Stored));
  }

  // False: some element is not finite; it is delivered as it is, but nothing may stay owed for its group.
  bool decode_exact(const std::byte* payload, int64_t group, Stored* out) const {
    const GroupPlace place = block_.layout.place(group);
    std::memcpy(out + place.first, payload + exact_offset(group), place.valid * sizeof(Stored));
    return std::all_of(out + place.first, out + place.first + place.valid,
                       [](Stored stored) { return is_finite(Element::load(stored)); });
  }

  const Block& block_;
  const Residuals& residuals_;
};

// Calls body(Element{}) for the element type of `dtype`.
template <typename Body>
int64_t with_element(Dtype dtype, const Body& body) {
  const FpModeGuard mode;
  switch (dtype) {
    case Dtype::kFloat16: return body(Fp16{});
    case Dtype::kBfloat16: return body(Bf16{});
    case Dtype::kFloat32: break;
  }
  return body(Fp32{});
}

class ReferenceCodec final : public Codec {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "reference"; }

  int64_t encode(const Block& block, const void* in, const Residuals& residuals, std::byte* payload) const override {
    return with_element(block.dtype, [&](auto element) {
      using Element = decltype(element);
      return Sweep<Element>(block, residuals).encode(static_cast<const typename Element::Stored*>(in), payload);
    });
  }

  int64_t reduce(const Block& block, Payloads payloads, const void* in, const Residuals& residuals,
                 const ReduceOptions& options, std::byte* payload) const override {
    return with_element(block.dtype, [&](auto element) {
      using Element = decltype(element);
      return Sweep<Element>(block, residuals)
          .reduce(payloads, static_cast<const typename Element::Stored*>(in), options, payload);
    });
  }

  int64_t decode(const Block& block, Payloads payloads, const Residuals& residuals, int divisor,
                 void* out) const override {
    return with_element(block.dtype, [&](auto element) {
      using Element = decltype(element);
      return Sweep<Element>(block, residuals).decode(payloads, divisor, static_cast<typename Element::Stored*>(out));
    });
  }
};

}  // namespace

const Codec& reference_codec() {
  static const ReferenceCodec codec;
  return codec;
}

}  // namespace echo_comm::core
