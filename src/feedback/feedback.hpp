// Room feedback: what rounding lost in the calls of one pass. Owned by the caller of the collectives; one object per
// chain of calls whose outputs add up with equal weight (one direction, one lane).
//
// Within a pass the partition and the rotation are fixed by the first call: residuals live in the rotated domain of that
// partition. State never outlives a pass.
//
// Every call of a pass loses what the store of the residuals drops (numerics.md section 8). int8 loses too much in long
// passes: without a wish of the caller it is widened to int16, value for value, when a pass reaches kInt8Calls calls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codec/residual.hpp"
#include "wire/layout.hpp"

namespace echo_comm::core {

class Feedback {
 public:
  static constexpr int64_t kInt8Calls = 256;

  // For tensors of up to `capacity` elements, of rank `rank` of `size`. store: none, the library decides.
  Feedback(int64_t capacity, int rank, int size, std::optional<Store> store);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Begins a new pass: nothing is owed, the next call fixes layout and rotation.
  void reset() { pass_.reset(); }

  // To be called before a call sends anything: fixes the pass, or checks that the call fits it (kState otherwise).
  void join_pass(const Partition& partition, bool rotation);

  // For a coded call, or for any other one once a coded one was made. Valid from join_pass to the next join_pass or
  // reset. The sender residual is that of all groups, of all parts.
  [[nodiscard]] Residuals residuals();

  // What an exact call needs: nothing before the first coded call of the pass. Nothing is owed then, and sending values of
  // a type in that type loses nothing, so residuals would stay zero.
  [[nodiscard]] Residuals residuals_of_exact_call() { return owes() ? residuals() : Residuals{}; }

  // The pass as bytes, and back: between calls. load() checks what it is given, which may come from anywhere, and changes
  // nothing when it throws (kArgument).
  [[nodiscard]] std::vector<std::byte> save() const;
  void load(std::span<const std::byte> state);

  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] float sender_norm();  // largest magnitude owed
  [[nodiscard]] float owner_norm();

 private:
  struct Pass {
    Partition partition;
    bool rotation;
    GroupRange owned;  // empty where the tensor falls in parts: their owners do not encode sums
    Store store;
    int64_t calls;
    bool owing;  // there are residuals: a call was coded
  };

  void begin(const Partition& partition, bool rotation);
  void widen(Pass& pass);
  [[nodiscard]] bool owes() const { return pass_ && pass_->owing; }
  [[nodiscard]] Store first_store() const { return store_.value_or(Store::kInt8); }

  int64_t capacity_;
  int rank_;
  int size_;
  std::optional<Store> store_;
  std::optional<Pass> pass_;
  std::vector<std::byte> sender_;
  std::vector<std::byte> owner_;
};

}  // namespace echo_comm::core
