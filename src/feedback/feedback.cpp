#include "feedback/feedback.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

float largest(const Residual& residual, Store store) {
  float norm = 0.0F;
  std::array<float, kGroup> e;
  for (int64_t group = 0; group < residual.groups; ++group) {
    load_residual(residual.of(group, store), e);
    for (const float value : e) norm = std::max(norm, std::abs(value));
  }
  return norm;
}

// The same values under the same scales.
std::vector<std::byte> int8_as_int16(const std::vector<std::byte>& narrow, int64_t groups) {
  std::vector<std::byte> wide(static_cast<std::size_t>(residual_bytes(groups, Store::kInt16)));
  const int64_t values = groups * kGroup;
  for (int64_t i = 0; i < values; ++i) {
    // The sign is meant to be kept. NOLINTNEXTLINE(bugprone-signed-char-misuse)
    const auto value = static_cast<int16_t>(std::to_integer<int8_t>(narrow[static_cast<std::size_t>(i)]));
    std::memcpy(&wide[static_cast<std::size_t>(2 * i)], &value, sizeof value);
  }
  std::copy(narrow.begin() + values, narrow.end(), wide.begin() + 2 * values);
  return wide;
}

const char* on_off(bool value) { return value ? "on" : "off"; }

}  // namespace

Feedback::Feedback(int64_t capacity, int rank, int size, std::optional<Store> store)
    : capacity_(capacity), rank_(rank), size_(size), store_(store) {
  const GroupLayout layout(capacity, 0);
  const GroupRange owned = chunk_of(layout.groups(), size, rank);
  sender_.reserve(static_cast<std::size_t>(residual_bytes(layout.groups(), first_store())));
  owner_.reserve(static_cast<std::size_t>(residual_bytes(owned.size(), first_store())));
}

void Feedback::begin(const Partition& partition, bool rotation) {
  require(partition.count() <= capacity_, ErrorCode::kArgument, "feedback: created for ", capacity_,
          " elements, the call has ", partition.count());
  const GroupRange owned = partition.in_parts() ? GroupRange{} : partition.of(rank_).range;
  pass_ = Pass{partition, rotation, owned, first_store(), 0, false};
}

void Feedback::join_pass(const Partition& partition, bool rotation) {
  if (!pass_) begin(partition, rotation);
  const auto shape = [](const Partition& one, bool rotated) {
    return text(one.count(), " elements", one.in_parts() ? " in parts" : "", ", row length ", one.row_length(),
                ", rotation ", on_off(rotated));
  };
  if (pass_->partition != partition || pass_->rotation != rotation) {
    fail(ErrorCode::kState, "feedback: the pass began with ", shape(pass_->partition, pass_->rotation),
         "; this call has ", shape(partition, rotation), "; reset the feedback to begin a new pass");
  }
  if (!store_ && pass_->calls == kInt8Calls) widen(*pass_);
  ++pass_->calls;
}

void Feedback::widen(Pass& pass) {
  pass.store = Store::kInt16;
  if (!pass.owing) return;
  std::vector<std::byte> sender = int8_as_int16(sender_, pass.partition.groups());
  owner_ = int8_as_int16(owner_, pass.owned.size());
  sender_ = std::move(sender);
}

Residuals Feedback::residuals() {
  if (!pass_->owing) {
    // Rows that are no multiple of 64 have padding in every row, more than the capacity foresaw: these may grow.
    sender_.assign(static_cast<std::size_t>(residual_bytes(pass_->partition.groups(), pass_->store)), std::byte{0});
    owner_.assign(static_cast<std::size_t>(residual_bytes(pass_->owned.size(), pass_->store)), std::byte{0});
    pass_->owing = true;
  }
  return {
      pass_->store, {sender_.data(), pass_->partition.groups()}, {owner_.data(), pass_->owned.size()}, pass_->owned};
}

std::size_t Feedback::bytes() const { return sender_.capacity() + owner_.capacity(); }

float Feedback::sender_norm() { return owes() ? largest(residuals().sender, pass_->store) : 0.0F; }

float Feedback::owner_norm() { return owes() ? largest(residuals().owner, pass_->store) : 0.0F; }

}  // namespace echo_comm::core
