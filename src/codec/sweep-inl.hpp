// The sweeps of codec.hpp over a kernel: the one text of the algorithm between a tensor and the wire.
//
// A kernel knows one group of 64 values: how to load, turn, add, encode, decode and store it (reference.cpp has the
// scalar one, simd.cpp the vector one). This file is included once by each file that has a kernel, and once for each
// instruction set by simd.cpp, inside its namespace and with its compiler target: hence no include guard, no includes.
//
//   Kernel::Group                                  64 values, rotated domain or not
//   Kernel::zero(group)                            all +0
//   Kernel::load<Element>(stored, group)           64 stored elements -> group
//   Kernel::store<Element>(group, stored)          back; store_bounded where no value is a NaN
//   Kernel::from(floats, group), to(group, floats) 64 floats <-> group
//   Kernel::owed(residual, group), keep(group, residual)
//                                                  residual of one group <-> group
//   Kernel::add_owed(residual, group)              group += residual
//   Kernel::rotate, add, subtract, divide          in place
//   Kernel::is_poisoned, all_finite
//   Kernel::decode(codes, scale, bits, group)      as decode_group of group.hpp
//   Kernel::decode_turned(...)                     the same, then rotated; moderate scales only
//   Kernel::Tile                                   a few groups on their way to codes; as encode_group for each

// Groups are handed on by reference and inlined: compilers copy structs of vectors through memory, word by word.
#if defined(ECHO_SIMD_FEW_TARGETS)  // sanitized builds: g++ took ten minutes
#define ECHO_INLINE inline
#else
#define ECHO_INLINE __attribute__((always_inline)) inline
#endif

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

// Collects groups and encodes them a tile at a time: the steps of one group wait for each other, those of several
// groups need not.
template <typename Kernel>
class Encoder {
 public:
  Encoder(const CodedPayload<std::byte>& payload, int64_t first) : payload_(payload), next_(first) {}

  void put(const typename Kernel::Group& v, const GroupResidual& residual) {
    tile_.put(v, residual);
    if (tile_.full()) flush();
  }

  // Number of poisoned groups.
  int64_t finish() {
    flush();
    return poisoned_;
  }

 private:
  void flush() {
    const int count = tile_.size();
    poisoned_ += tile_.encode(payload_.bits, payload_.codes(next_), payload_.scale_at(next_));
    next_ += count;
  }

  typename Kernel::Tile tile_;
  CodedPayload<std::byte> payload_;
  int64_t next_;
  int64_t poisoned_ = 0;
};

template <typename Kernel, typename Element>
class Sweep {
 public:
  using Group = typename Kernel::Group;
  using Stored = typename Element::Stored;
  using Floats = std::array<float, kGroup>;

  Sweep(const Block& block, const Residuals& residuals) : block_(block), residuals_(residuals) {}

  int64_t encode(const Stored* in, std::byte* payload) const {
    const GroupRange work = block_.work();
    if (block_.format.exact()) {
      if (keeps_nothing()) {
        copy_out(in, payload);
        return 0;
      }
      for (int64_t group = work.begin; group < work.end; ++group) encode_exact(in, group, payload);
      return 0;
    }
    Encoder<Kernel> encoder(coded_payload(payload), work.begin - block_.range.begin);
    for (int64_t group = work.begin; group < work.end; ++group) {
      Group v;
      own_addend(in, group, v);
      if (const GroupResidual owner = residuals_.owner_of(group)) {
        Kernel::add_owed(owner, v);
        clear_residual(owner);
      }
      encoder.put(v, residuals_.sender_of(group));
    }
    return encoder.finish();
  }

  int64_t reduce(Payloads payloads, const Stored* in, const ReduceOptions& options, std::byte* payload) const {
    const GroupRange work = block_.work();
    if (block_.format.exact()) {
      for (int64_t group = work.begin; group < work.end; ++group) reduce_exact(payloads, in, group, options, payload);
      return 0;
    }
    Encoder<Kernel> encoder(coded_payload(payload), work.begin - block_.range.begin);
    for (int64_t group = work.begin; group < work.end; ++group) {
      Group total;
      sum_addends(payloads, in, group, options, total);
      const GroupResidual owner = residuals_.owner_of(group);
      if (owner) Kernel::add_owed(owner, total);
      encoder.put(total, owner);
    }
    return encoder.finish();
  }

  int64_t sum(Payloads payloads, const Stored* in, const ReduceOptions& options, Stored* out) const {
    const GroupRange work = block_.work();
    int64_t poisoned = 0;
    for (int64_t group = work.begin; group < work.end; ++group) {
      const bool bad = block_.format.exact() ? !sum_exact(payloads, in, group, options, out)
                                             : !sum_coded(payloads, in, group, options, out);
      if (!bad) continue;
      clear_residual(residuals_.sender_of(group));
      poisoned += block_.format.exact() ? 0 : 1;
    }
    return poisoned;
  }

  int64_t decode(Payloads payloads, const DecodeOptions& options, Stored* out) const {
    const GroupRange work = block_.work();
    if (block_.format.exact() && payloads.size() == 1 && !options.add && keeps_nothing()) {
      copy_in(payloads[0], out);
      return 0;
    }
    int64_t poisoned = 0;
    for (int64_t group = work.begin; group < work.end; ++group) {
      const bool bad = block_.format.exact() ? !decode_exact(payloads, group, options, out)
                                             : !decode_coded(payloads, group, options, out);
      if (!bad) continue;
      clear_residual(residuals_.sender_of(group));
      clear_residual(residuals_.owner_of(group));
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
  ECHO_INLINE void load(const Stored* in, int64_t group, Group& v) const {
    const GroupPlace place = block_.layout.place(group);
    if (place.valid == kGroup) return Kernel::template load<Element>(in + place.first, v);
    std::array<Stored, kGroup> padded{};
    std::copy_n(in + place.first, place.valid, padded.begin());
    Kernel::template load<Element>(padded.data(), v);
  }

  // Hx + e.
  ECHO_INLINE void own_addend(const Stored* in, int64_t group, Group& v) const {
    load(in, group, v);
    if (rotation()) Kernel::rotate(v);
    if (const GroupResidual sender = residuals_.sender_of(group)) Kernel::add_owed(sender, v);
  }

  // The owner's own addend enters the sum unrounded, so nothing of it is owed; batch invariant: coded like the others.
  ECHO_INLINE void unrounded(const Stored* in, int64_t group, bool batch_invariant, Group& v) const {
    own_addend(in, group, v);
    const GroupResidual sender = residuals_.sender_of(group);
    if (!batch_invariant) return clear_residual(sender);
    std::array<uint8_t, kGroup> codes;
    std::array<std::byte, kScaleBytes> scale;
    typename Kernel::Tile one;
    one.put(v, sender);
    one.encode(bits(), codes.data(), scale.data());
    Kernel::decode(codes.data(), std::bit_cast<uint16_t>(scale), bits(), v);
  }

  ECHO_INLINE void received(const std::byte* payload, int64_t group, Group& v) const {
    const CodedPayload<const std::byte> coded = coded_payload(payload);
    const int64_t index = group - block_.range.begin;
    Kernel::decode(coded.codes(index), coded.scale(index), bits(), v);
  }

  // All addends in rank order, the own one in its place.
  ECHO_INLINE void sum_addends(Payloads payloads, const Stored* in, int64_t group, const ReduceOptions& options,
                               Group& total) const {
    Kernel::zero(total);
    for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
      Group addend;
      if (static_cast<int>(rank) == options.rank) {
        unrounded(in, group, options.batch_invariant, addend);
      } else {
        received(payloads[rank], group, addend);
      }
      Kernel::add(total, addend);
    }
  }

  // False: the group is poisoned, out holds NaN.
  ECHO_INLINE bool sum_coded(Payloads payloads, const Stored* in, int64_t group, const ReduceOptions& options,
                             Stored* out) const {
    Group v;
    sum_addends(payloads, in, group, options, v);
    if (Kernel::is_poisoned(v)) return poison(group, out);
    if (rotation()) Kernel::rotate(v);
    if (options.divisor != 1) Kernel::divide(v, static_cast<float>(options.divisor));
    store(v, group, true, out);
    return true;
  }

  // False: the group is poisoned, out holds NaN.
  ECHO_INLINE bool decode_coded(Payloads payloads, int64_t group, const DecodeOptions& options, Stored* out) const {
    Group v;
    bool bounded = true;  // no value is a NaN, whatever the rotation made of them
    if (payloads.size() == 1) {
      if (!decode_sum(payloads[0], group, v, bounded)) return poison(group, out);
    } else {
      Kernel::zero(v);
      for (const std::byte* payload : payloads) {
        Group addend;
        received(payload, group, addend);
        Kernel::add(v, addend);
      }
      if (Kernel::is_poisoned(v)) return poison(group, out);
      if (rotation()) Kernel::rotate(v);
    }
    if (options.divisor != 1) Kernel::divide(v, static_cast<float>(options.divisor));
    if (options.add) {
      Group before;
      load(out, group, before);
      Kernel::add(v, before);
      bounded = false;
    }
    store(v, group, bounded, out);
    return true;
  }

  // A coded sum, rotated back. Its owner has checked it, so only a scale that is not finite makes the group poisoned
  // (false). No encoder writes a scale that is not moderate, but for values near the limit of 2^124.
  ECHO_INLINE bool decode_sum(const std::byte* payload, int64_t group, Group& v, bool& bounded) const {
    const CodedPayload<const std::byte> coded = coded_payload(payload);
    const int64_t index = group - block_.range.begin;
    const uint16_t scale = coded.scale(index);
    bounded = is_moderate_scale(scale);
    if (rotation() && bounded) {
      Kernel::decode_turned(coded.codes(index), scale, bits(), v);
      return true;
    }
    Kernel::decode(coded.codes(index), scale, bits(), v);
    if (bounded) return true;
    if (!Kernel::all_finite(v)) return false;
    if (rotation()) Kernel::rotate(v);
    return true;
  }

  bool poison(int64_t group, Stored* out) const {
    const GroupPlace place = block_.layout.place(group);
    std::fill_n(out + place.first, place.valid, Element::nan());
    return false;
  }

  ECHO_INLINE void store(const Group& v, int64_t group, bool bounded, Stored* out) const {
    const GroupPlace place = block_.layout.place(group);
    const bool whole = place.valid == kGroup;
    std::array<Stored, kGroup> padded;
    Stored* to = whole ? out + place.first : padded.data();
    bounded ? Kernel::template store_bounded<Element>(v, to) : Kernel::template store<Element>(v, to);
    if (!whole) std::copy_n(padded.begin(), place.valid, out + place.first);
  }

  // ---- exact path ----

  [[nodiscard]] bool keeps_nothing() const {
    return residuals_.sender.base == nullptr && residuals_.owner.base == nullptr;
  }

  [[nodiscard]] int64_t exact_offset(int64_t group) const {
    const int64_t first = block_.layout.first_element(block_.range.begin);
    return (block_.layout.place(group).first - first) * static_cast<int64_t>(sizeof(Stored));
  }

  // Elements follow each other in the tensor and on the wire alike, so groups that are only copied are copied together.
  struct Stretch {
    int64_t first;
    int64_t payload_offset;
    std::size_t bytes;
  };
  [[nodiscard]] Stretch stretch() const {
    const GroupRange work = block_.work();
    const GroupPlace begin = block_.layout.place(work.begin);
    const GroupPlace last = block_.layout.place(work.end - 1);
    return {begin.first, exact_offset(work.begin),
            static_cast<std::size_t>(last.first + last.valid - begin.first) * sizeof(Stored)};
  }
  void copy_out(const Stored* in, std::byte* payload) const {
    if (block_.work().size() == 0) return;
    const Stretch all = stretch();
    std::memcpy(payload + all.payload_offset, in + all.first, all.bytes);
  }
  void copy_in(const std::byte* payload, Stored* out) const {
    if (block_.work().size() == 0) return;
    const Stretch all = stretch();
    std::memcpy(out + all.first, payload + all.payload_offset, all.bytes);
  }

  // v + H e.
  ECHO_INLINE void add_turned(const GroupResidual& residual, Group& v) const {
    Group e;
    Kernel::owed(residual, e);
    if (rotation()) Kernel::rotate(e);
    Kernel::add(v, e);
  }

  // r = round(x + He) in the type, saturating where x is finite; e = H(x + He - r). With an owner residual (one-shot)
  // x + H(e + o), and o = 0.
  ECHO_INLINE void encode_exact(const Stored* in, int64_t group, std::byte* payload) const {
    const GroupResidual sender = residuals_.sender_of(group);
    const GroupResidual owner = residuals_.owner_of(group);
    Group owed;
    Kernel::zero(owed);
    if (sender) add_turned(sender, owed);
    if (owner) add_turned(owner, owed);
    clear_residual(owner);
    Group rest;
    load(in, group, rest);
    Kernel::add(rest, owed);
    std::array<Stored, kGroup> sent;
    Kernel::template store<Element>(rest, sent.data());
    Group rounded;
    Kernel::template load<Element>(sent.data(), rounded);
    if (Kernel::all_finite(rounded)) {
      Kernel::subtract(rest, rounded);
    } else {
      saturate(in, group, owed, sent, rest);
    }
    if (sender) {
      if (rotation()) Kernel::rotate(rest);
      Kernel::keep(rest, sender);
    }
    std::memcpy(payload + exact_offset(group), sent.data(), block_.layout.place(group).valid * sizeof(Stored));
  }

  // A group with something that does not fit, element by element: what is owed never turns a finite value into an
  // infinity.
  void saturate(const Stored* in, int64_t group, const Group& owed, std::array<Stored, kGroup>& sent,
                Group& rest) const {
    const GroupPlace place = block_.layout.place(group);
    Floats values;
    Kernel::to(owed, values.data());
    for (int i = 0; i < kGroup; ++i) {
      const float x = i < place.valid ? Element::load(in[place.first + i]) : 0.0F;
      float value = x + values[i];
      float nearest = value;
      if (is_finite(x)) {
        value = std::clamp(value, -Fp32::kMax, Fp32::kMax);
        nearest = std::clamp(value, -Element::kMax, Element::kMax);
      }
      sent[i] = Element::store(nearest);
      values[i] = value - Element::load(sent[i]);
    }
    Kernel::from(values.data(), rest);
  }

  ECHO_INLINE void received_exact(const std::byte* payload, int64_t group, Group& v) const {
    const int valid = block_.layout.place(group).valid;
    const std::byte* from = payload + exact_offset(group);  // aligned for nothing
    std::array<Stored, kGroup> stored;
    if (valid == kGroup) {
      std::memcpy(stored.data(), from, sizeof stored);
    } else {
      stored = {};
      std::memcpy(stored.data(), from, valid * sizeof(Stored));
    }
    Kernel::template load<Element>(stored.data(), v);
  }

  ECHO_INLINE void sum_addends_exact(Payloads payloads, const Stored* in, int64_t group, int rank, Group& total) const {
    Kernel::zero(total);
    for (std::size_t sender = 0; sender < payloads.size(); ++sender) {
      Group addend;
      if (static_cast<int>(sender) == rank) {
        load(in, group, addend);
        if (const GroupResidual owed = residuals_.sender_of(group)) {
          add_turned(owed, addend);
          clear_residual(owed);
        }
      } else {
        received_exact(payloads[sender], group, addend);
      }
      Kernel::add(total, addend);
    }
  }

  // Rounded to the type, after the division of an average. False: some element is not finite, maybe by rounding.
  ECHO_INLINE static bool round_exact(Group& total, int divisor, Stored* stored) {
    if (divisor != 1) Kernel::divide(total, static_cast<float>(divisor));
    Kernel::template store<Element>(total, stored);
    Group rounded;
    Kernel::template load<Element>(stored, rounded);
    return Kernel::all_finite(rounded);
  }

  ECHO_INLINE void reduce_exact(Payloads payloads, const Stored* in, int64_t group, const ReduceOptions& options,
                                std::byte* payload) const {
    Group total;
    sum_addends_exact(payloads, in, group, options.rank, total);
    if (const GroupResidual owner = residuals_.owner_of(group)) {
      add_turned(owner, total);
      clear_residual(owner);
    }
    std::array<Stored, kGroup> stored;
    round_exact(total, options.divisor, stored.data());
    std::memcpy(payload + exact_offset(group), stored.data(), block_.layout.place(group).valid * sizeof(Stored));
  }

  // False, here and below: some element is not finite; it is delivered as it is, but nothing may stay owed for its group.
  ECHO_INLINE bool sum_exact(Payloads payloads, const Stored* in, int64_t group, const ReduceOptions& options,
                             Stored* out) const {
    Group total;
    sum_addends_exact(payloads, in, group, options.rank, total);
    std::array<Stored, kGroup> stored;
    const bool finite = round_exact(total, options.divisor, stored.data());
    put_exact(stored, group, out);
    return finite;
  }

  // The rounded sum of the owner, or (several payloads) the sum of what all sent.
  ECHO_INLINE bool decode_exact(Payloads payloads, int64_t group, const DecodeOptions& options, Stored* out) const {
    std::array<Stored, kGroup> stored;
    Group v;
    if (payloads.size() == 1) {
      received_exact(payloads[0], group, v);
    } else {
      Kernel::zero(v);
      for (const std::byte* payload : payloads) {
        Group addend;
        received_exact(payload, group, addend);
        Kernel::add(v, addend);
      }
    }
    const bool finite = round_exact(v, payloads.size() == 1 ? 1 : options.divisor, stored.data());
    if (options.add) {
      Group before;
      load(out, group, before);
      Kernel::template load<Element>(stored.data(), v);
      Kernel::add(before, v);
      Kernel::template store<Element>(before, stored.data());
    }
    put_exact(stored, group, out);
    return finite;
  }

  ECHO_INLINE void put_exact(const std::array<Stored, kGroup>& stored, int64_t group, Stored* out) const {
    const GroupPlace place = block_.layout.place(group);
    if (place.valid == kGroup) {
      std::memcpy(out + place.first, stored.data(), sizeof stored);
    } else {
      std::copy_n(stored.begin(), place.valid, out + place.first);
    }
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

  int64_t sum(const Block& block, Payloads payloads, const void* in, const Residuals& residuals,
              const ReduceOptions& options, void* out) const override {
    return with_element(block.dtype, [&](auto element) {
      using Element = decltype(element);
      return Sweep<Kernel, Element>(block, residuals)
          .sum(payloads, static_cast<const typename Element::Stored*>(in), options,
               static_cast<typename Element::Stored*>(out));
    });
  }

  int64_t decode(const Block& block, Payloads payloads, const Residuals& residuals, const DecodeOptions& options,
                 void* out) const override {
    return with_element(block.dtype, [&](auto element) {
      using Element = decltype(element);
      return Sweep<Kernel, Element>(block, residuals)
          .decode(payloads, options, static_cast<typename Element::Stored*>(out));
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

#undef ECHO_INLINE
