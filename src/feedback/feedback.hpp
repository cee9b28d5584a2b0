// Room feedback: what rounding lost in the calls of one pass. Owned by the caller of the collectives; one object per
// chain of calls whose outputs add up with equal weight (one direction, one lane).
//
// Within a pass the layout and the rotation are fixed by the first call: residuals live in the rotated domain of that
// layout. State never outlives a pass.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "wire/format.hpp"
#include "wire/layout.hpp"

namespace echo_comm::core {

class Feedback {
 public:
  // For tensors of up to `capacity` elements, of rank `rank` of `size`.
  Feedback(int64_t capacity, int rank, int size);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Begins a new pass: nothing is owed, the next call fixes layout and rotation.
  void reset() { pass_.reset(); }

  // To be called before a call sends anything: fixes the pass, or checks that the call fits it (kState otherwise).
  void join_pass(const GroupLayout& layout, bool rotation);

  // Valid from join_pass to the next reset.
  [[nodiscard]] float* sender() { return sender_.data(); }
  [[nodiscard]] float* owner() { return owner_.data(); }
  [[nodiscard]] GroupRange owned() const { return owned_; }

  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] float sender_norm() const;  // largest magnitude owed
  [[nodiscard]] float owner_norm() const;

 private:
  struct Pass {
    GroupLayout layout;
    bool rotation;
  };

  int64_t capacity_;
  int rank_;
  int size_;
  std::optional<Pass> pass_;
  GroupRange owned_;
  std::vector<float> sender_;
  std::vector<float> owner_;
};

}  // namespace echo_comm::core
