// The three sweeps of codec.hpp over a kernel: the one text of the algorithm between a tensor and the wire.
//
// A kernel knows one group of 64 values: how to load, turn, add, encode, decode and store it (reference.cpp has the
// scalar one, simd.cpp the vector one). This file is included once by each file that has a kernel, and once for each
// instruction set by simd.cpp, inside its namespace and with its compiler target: hence no include guard, no includes.
//
//   Kernel::Group                                  64 values, rotated domain or not
//   Kernel::zero()                                 all +0
//   Kernel::load<Element>(stored), store<Element>  64 stored elements <-> group
//   Kernel::from(floats), to(group, floats)        64 floats <-> group
//   Kernel::rotate, add, divide                    in place
//   Kernel::is_poisoned, all_finite
//   Kernel::encode, decode                         as encode_group, decode_group of group.hpp

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

inline void clear(float* residual) {
  if (residual != nullptr) std::fill_n(residual, kGroup, 0.0F);
}

template <typename Kernel, typename Element>
class Sweep {
 public:
  using Group = typename Kernel::Group;
  using Stored = typename Element::Stored;
  using Floats = std::array<float, kGroup>;

  Sweep(const Block& block, const Residuals& residuals) : block_(block), residuals_(residuals) {}

  int64_t encode(const Stored* in, std::byte* payload) const {
    int64_t poisoned = 0;
    const CodedPayload<std::byte> coded = coded_payload(payload);
    for (int64_t group = block_.range.begin; group < block_.range.end; ++group) {
      if (block_.format.exact()) {
        encode_exact(in, group, payload);
        continue;
      }
      Group v = own_addend(in, group);
      if (float* owner = residuals_.owner_of(group); owner != nullptr) {
        Kernel::add(v, owner);
        clear(owner);
      }
      poisoned += finish(v, group, coded, residuals_.sender_of(group));
    }
    return poisoned;
  }

  int64_t reduce(Payloads payloads, const Stored* in, const ReduceOptions& options, std::byte* payload) const {
    int64_t poisoned = 0;
    const CodedPayload<std::byte> coded = coded_payload(payload);
    for (int64_t group = block_.range.begin; group < block_.range.end; ++group) {
      if (block_.format.exact()) {
        reduce_exact(payloads, in, group, options, payload);
        continue;
      }
      Group total = Kernel::zero();
      for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
        const bool own = static_cast<int>(rank) == options.rank;
        Kernel::add(total, own ? unrounded(in, group, options.batch_invariant) : received(payloads[rank], group));
      }
      float* owner = residuals_.owner_of(group);
      if (owner != nullptr) Kernel::add(total, owner);
      poisoned += finish(total, group, coded, owner);
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

  // ---- coded formats ----

  // Missing values at the end of a row or tensor are 0.
  Group load(const Stored* in, int64_t group) const {
    const GroupPlace place = block_.layout.place(group);
    if (place.valid == kGroup) return Kernel::template load<Element>(in + place.first);
    std::array<Stored, kGroup> padded{};
    std::copy_n(in + place.first, place.valid, padded.begin());
    return Kernel::template load<Element>(padded.data());
  }

  // Hx + e.
  Group own_addend(const Stored* in, int64_t group) const {
    Group v = load(in, group);
    if (rotation()) Kernel::rotate(v);
    if (const float* sender = residuals_.sender_of(group); sender != nullptr) Kernel::add(v, sender);
    return v;
  }

  // Encodes into the payload; 1 if the group is poisoned.
  int64_t finish(const Group& v, int64_t group, const CodedPayload<std::byte>& coded, float* residual) const {
    const int64_t index = group - block_.range.begin;
    const uint16_t scale = Kernel::encode(v, bits(), coded.codes(index), residual);
    coded.set_scale(index, scale);
    return is_poisoned_scale(scale) ? 1 : 0;
  }

  // The owner's own addend enters the sum unrounded, so nothing of it is owed; batch invariant: coded like the others.
  Group unrounded(const Stored* in, int64_t group, bool batch_invariant) const {
    Group v = own_addend(in, group);
    float* sender = residuals_.sender_of(group);
    if (!batch_invariant) {
      clear(sender);
      return v;
    }
    std::array<uint8_t, kGroup> codes;
    const uint16_t scale = Kernel::encode(v, bits(), codes.data(), sender);
    return Kernel::decode(codes.data(), scale, bits());
  }

  Group received(const std::byte* payload, int64_t group) const {
    const CodedPayload<const std::byte> coded = coded_payload(payload);
    const int64_t index = group - block_.range.begin;
    return Kernel::decode(coded.codes(index), coded.scale(index), bits());
  }

  // False: the group is poisoned, out holds NaN.
  bool decode_coded(Payloads payloads, int64_t group, int divisor, Stored* out) const {
    Group v = received(payloads[0], group);
    bool poisoned = !Kernel::all_finite(v);  // a coded sum was checked by its owner, only its scale says so
    if (payloads.size() > 1) {
      Group total = Kernel::zero();
      Kernel::add(total, v);
      for (const std::byte* payload : payloads.subspan(1)) Kernel::add(total, received(payload, group));
      v = total;
      poisoned = Kernel::is_poisoned(v);
    }
    const GroupPlace place = block_.layout.place(group);
    if (poisoned) {
      std::fill_n(out + place.first, place.valid, Element::nan());
      return false;
    }
    if (rotation()) Kernel::rotate(v);
    if (divisor != 1) Kernel::divide(v, static_cast<float>(divisor));
    if (place.valid == kGroup) {
      Kernel::template store<Element>(v, out + place.first);
    } else {
      std::array<Stored, kGroup> padded;
      Kernel::template store<Element>(v, padded.data());
      std::copy_n(padded.begin(), place.valid, out + place.first);
    }
    return true;
  }

  // ---- exact path: plain loops over elements, which compilers vectorise ----

  [[nodiscard]] int64_t exact_offset(int64_t group) const {
    const int64_t first = block_.layout.first_element(block_.range.begin);
    return (block_.layout.place(group).first - first) * static_cast<int64_t>(sizeof(Stored));
  }

  Floats turned(const float* residual) const {
    Group v = Kernel::from(residual);
    if (rotation()) Kernel::rotate(v);
    Floats floats;
    Kernel::to(v, floats.data());
    return floats;
  }

  static Floats widen(const Stored* stored, int valid) {
    Floats v{};
    for (int i = 0; i < valid; ++i) v[i] = Element::load(stored[i]);
    return v;
  }

  static void add(Floats& v, const Floats& addend) {
    for (int i = 0; i < kGroup; ++i) v[i] += addend[i];
  }

  // r = round(x + He) in the type, saturating where x is finite; e = H(x + He - r).
  void encode_exact(const Stored* in, int64_t group, std::byte* payload) const {
    const GroupPlace place = block_.layout.place(group);
    float* sender = residuals_.sender_of(group);
    if (sender == nullptr) {
      std::memcpy(payload + exact_offset(group), in + place.first, place.valid * sizeof(Stored));
      return;
    }
    const Floats x = widen(in + place.first, place.valid);
    const Floats owed = turned(sender);
    std::array<Stored, kGroup> sent;
    Floats rest;
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
    rest = turned(rest.data());
    std::copy(rest.begin(), rest.end(), sender);
    std::memcpy(payload + exact_offset(group), sent.data(), place.valid * sizeof(Stored));
  }

  void reduce_exact(Payloads payloads, const Stored* in, int64_t group, const ReduceOptions& options,
                    std::byte* payload) const {
    const GroupPlace place = block_.layout.place(group);
    Floats total{};
    std::array<Stored, kGroup> stored;
    for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
      if (static_cast<int>(rank) == options.rank) {
        Floats own = widen(in + place.first, place.valid);
        if (float* sender = residuals_.sender_of(group); sender != nullptr) {
          add(own, turned(sender));
          clear(sender);
        }
        add(total, own);
      } else {
        std::memcpy(stored.data(), payloads[rank] + exact_offset(group), place.valid * sizeof(Stored));
        add(total, widen(stored.data(), place.valid));
      }
    }
    if (float* owner = residuals_.owner_of(group); owner != nullptr) {
      add(total, turned(owner));
      clear(owner);
    }
    for (int i = 0; i < place.valid; ++i) {
      stored[i] = Element::store(options.divisor == 1 ? total[i] : total[i] / static_cast<float>(options.divisor));
    }
    std::memcpy(payload + exact_offset(group), stored.data(), place.valid * sizeof(Stored));
  }

  // False: some element is not finite; it is delivered as it is, but nothing may stay owed for its group.
  bool decode_exact(const std::byte* payload, int64_t group, Stored* out) const {
    const GroupPlace place = block_.layout.place(group);
    std::memcpy(out + place.first, payload + exact_offset(group), place.valid * sizeof(Stored));
    bool finite = true;
    for (int i = 0; i < place.valid; ++i) finite &= is_finite(Element::load(out[place.first + i]));
    return finite;
  }

  const Block& block_;
  const Residuals& residuals_;
};

// A codec made of a kernel.
template <typename Kernel>
class SweepCodec final : public Codec {
 public:
  [[nodiscard]] const char* name() const noexcept override { return Kernel::name(); }

  int64_t encode(const Block& block, const void* in, const Residuals& residuals, std::byte* payload) const override {
    return with_element(block.dtype, [&](auto element) {
      using Element = decltype(element);
      return Sweep<Kernel, Element>(block, residuals).encode(static_cast<const typename Element::Stored*>(in), payload);
    });
  }

  int64_t reduce(const Block& block, Payloads payloads, const void* in, const Residuals& residuals,
                 const ReduceOptions& options, std::byte* payload) const override {
    return with_element(block.dtype, [&](auto element) {
      using Element = decltype(element);
      return Sweep<Kernel, Element>(block, residuals)
          .reduce(payloads, static_cast<const typename Element::Stored*>(in), options, payload);
    });
  }

  int64_t decode(const Block& block, Payloads payloads, const Residuals& residuals, int divisor,
                 void* out) const override {
    return with_element(block.dtype, [&](auto element) {
      using Element = decltype(element);
      return Sweep<Kernel, Element>(block, residuals)
          .decode(payloads, divisor, static_cast<typename Element::Stored*>(out));
    });
  }

 private:
  // Calls body(Element{}) for the element type of `dtype`, in the floating-point mode of the specification.
  template <typename Body>
  static int64_t with_element(Dtype dtype, const Body& body) {
    const FpModeGuard mode;
    switch (dtype) {
      case Dtype::kFloat16: return body(Fp16{});
      case Dtype::kBfloat16: return body(Bf16{});
      case Dtype::kFloat32: break;
    }
    return body(Fp32{});
  }
};
