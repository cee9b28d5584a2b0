// Which way a call goes. A function of values that every rank knows, so that all ranks decide alike.
#pragma once

#include <cstdint>

#include "collective/table.hpp"
#include "wire/format.hpp"
#include "wire/header.hpp"
#include "wire/layout.hpp"

namespace echo_comm::core {

// What a caller asked for.
struct Wish {
  Collective collective = Collective::kAllReduce;
  int64_t count = 0;  // elements of the whole tensor
  Format format = {};
  bool bits_given = false;  // by the caller: the table does not change them
  Algorithm algorithm = Algorithm::kAuto;
  bool feedback = false;
};

// Of a broadcast or a barrier: never coded.
[[nodiscard]] inline Wish control_wish(Collective collective, int64_t count) {
  return {.collective = collective, .count = count, .format = {kExactBits, false}, .bits_given = true};
}

// What all ranks of the communicator share.
struct Circumstances {
  int size = 1;
  bool batch_invariant = false;
  bool network = false;  // messages cross a wire: more segments ahead
};

struct Choice {
  Path path = Path::kCoded;
  Format format;
  Kind kind = Kind::kTwoShot;
  int64_t segment_groups = 1;  // groups of one segment at most; the transport's message size may lower it
  int depth = 1;               // segments sent ahead
  const char* reason = "";     // of the path; a literal
};

// The size that the table and the built-in rules go by: that of the tensor at 2 bytes an element.
[[nodiscard]] constexpr int64_t table_bytes(int64_t count) { return 2 * count; }

// Throws kArgument when the caller forces what does not exist (one-shot in a batch invariant communicator).
Choice select(const Wish& wish, const Circumstances& circumstances, const Table& table);

}  // namespace echo_comm::core
