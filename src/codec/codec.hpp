// Room codec: values <-> codes. Four sweeps over a range of groups: encode, reduce, sum, decode. Each reads its input
// once and writes its output once, group by group, without temporary tensors. Encoders write straight into the memory
// that is sent, decoders read straight from what was received.
//
// bits = 16 is the exact path: the same sweeps with the elements themselves on the wire, so the collectives are
// one text for both.
//
// The codec knows nothing of ranks' order of calls, transports or state: residuals are arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "codec/residual.hpp"
#include "wire/format.hpp"
#include "wire/layout.hpp"

namespace echo_comm::core {

// What a sweep works on: groups `range` of a tensor.
struct Block {
  GroupLayout layout;
  GroupRange range;
  Format format;
  Dtype dtype;
  std::optional<GroupRange> part = {};  // groups of the range that this sweep is for; payloads are those of the range

  [[nodiscard]] GroupRange work() const { return part.value_or(range); }
  [[nodiscard]] int64_t encoded_bytes() const { return encoded_size(layout, range, format, dtype); }
};

// What the ranks sent for the block, in rank order. The own entry is null where the own addend is not coded.
using Payloads = std::span<const std::byte* const>;

struct ReduceOptions {
  int rank = 0;                  // whose addend comes from `in`
  bool batch_invariant = false;  // own addend coded too, with its sender residual
  int divisor = 1;               // reduce: exact path only, applied before the sum is rounded to the type
};

struct DecodeOptions {
  int divisor = 1;   // but for one payload of the exact path, where reduce has applied it
  bool add = false;  // out += decoded, in fp32 and rounded once
};

class Codec {
 public:
  virtual ~Codec() = default;
  [[nodiscard]] virtual const char* name() const noexcept = 0;

  // in: the whole tensor. The owner residual, if given, is added on its groups and becomes 0 (one-shot).
  // Returns the number of poisoned groups.
  virtual int64_t encode(const Block& block, const void* in, const Residuals& residuals, std::byte* payload) const = 0;

  // Adds the payloads and the own addend in rank order in fp32, then the owner residual; encodes the sum.
  // Returns the number of poisoned groups.
  virtual int64_t reduce(const Block& block, Payloads payloads, const void* in, const Residuals& residuals,
                         const ReduceOptions& options, std::byte* payload) const = 0;

  // The same addends, without the owner residual; the sum goes to `out` (the whole tensor), rounded to its type alone
  // (reduce-scatter). out may be in. Returns the number of poisoned groups; their sender residuals become 0.
  virtual int64_t sum(const Block& block, Payloads payloads, const void* in, const Residuals& residuals,
                      const ReduceOptions& options, void* out) const = 0;

  // out: the whole tensor. One payload: the coded sum. Several: their sum, in order.
  // Residuals of groups that come out as NaN become 0. Returns the number of those groups.
  virtual int64_t decode(const Block& block, Payloads payloads, const Residuals& residuals,
                         const DecodeOptions& options, void* out) const = 0;
};

// The specification, literally; what every other implementation is compared with.
const Codec& reference_codec();

}  // namespace echo_comm::core
