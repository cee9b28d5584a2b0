// Which algorithm a call takes. A function of values that every rank knows, so that all ranks decide alike.
#pragma once

#include <cstdint>

#include "wire/format.hpp"
#include "wire/header.hpp"
#include "wire/layout.hpp"

namespace echo_comm::core {

enum class Algorithm { kAuto = 0, kOneShot = 1, kTwoShot = 2 };

struct Choice {
  Kind kind;
  int64_t segment_groups;  // groups of one segment at most; the transport's message size may lower it
};

// Throws kArgument when the caller forces what does not exist (one-shot on the exact path, or batch invariant).
Choice select(const GroupLayout& layout, Format format, int size, Algorithm wanted, bool batch_invariant);

}  // namespace echo_comm::core
