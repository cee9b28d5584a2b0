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

void Feedback::begin(const GroupLayout& layout, bool rotation) {
  require(layout.count() <= capacity_, ErrorCode::kArgument, "feedback: created for ", capacity_,
          " elements, the call has ", layout.count());
  Pass pass{layout, rotation, chunk_of(layout.groups(), size_, rank_), first_store(), 0};
  // Rows that are no multiple of 64 have padding in every row, more than the capacity foresaw: these may grow.
  sender_.assign(static_cast<std::size_t>(residual_bytes(layout.groups(), pass.store)), std::byte{0});
  owner_.assign(static_cast<std::size_t>(residual_bytes(pass.owned.size(), pass.store)), std::byte{0});
  pass_ = pass;
}

void Feedback::join_pass(const GroupLayout& layout, bool rotation) {
  if (!pass_) begin(layout, rotation);
  require(pass_->layout == layout && pass_->rotation == rotation, ErrorCode::kState, "feedback: the pass began with ",
          pass_->layout.count(), " elements, row length ", pass_->layout.row_length(), ", rotation ",
          on_off(pass_->rotation), "; this call has ", layout.count(), " elements, row length ", layout.row_length(),
          ", rotation ", on_off(rotation), "; reset the feedback to begin a new pass");
  if (!store_ && pass_->calls == kInt8Calls) widen(*pass_);
  ++pass_->calls;
}

void Feedback::widen(Pass& pass) {
  std::vector<std::byte> sender = int8_as_int16(sender_, pass.layout.groups());
  owner_ = int8_as_int16(owner_, pass.owned.size());
  sender_ = std::move(sender);
  pass.store = Store::kInt16;
}

Residuals Feedback::residuals() {
  return {pass_->store, {sender_.data(), pass_->layout.groups()}, {owner_.data(), pass_->owned.size()}, pass_->owned};
}

std::size_t Feedback::bytes() const { return sender_.capacity() + owner_.capacity(); }

float Feedback::sender_norm() { return pass_ ? largest(residuals().sender, pass_->store) : 0.0F; }

float Feedback::owner_norm() { return pass_ ? largest(residuals().owner, pass_->store) : 0.0F; }

}  // namespace echo_comm::core
