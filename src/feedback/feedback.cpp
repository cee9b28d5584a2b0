#include "feedback/feedback.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

float largest(const std::vector<float>& values) {
  float norm = 0.0F;
  for (const float value : values) norm = std::max(norm, std::abs(value));
  return norm;
}

const char* on_off(bool value) { return value ? "on" : "off"; }

}  // namespace

Feedback::Feedback(int64_t capacity, int rank, int size) : capacity_(capacity), rank_(rank), size_(size) {
  const GroupLayout layout(capacity, 0);
  sender_.reserve(layout.groups() * kGroup);
  owner_.reserve(chunk_of(layout.groups(), size, rank).size() * kGroup);
}

void Feedback::join_pass(const GroupLayout& layout, bool rotation) {
  if (!pass_) {
    require(layout.count() <= capacity_, ErrorCode::kArgument, "feedback: created for ", capacity_,
            " elements, the call has ", layout.count());
    owned_ = chunk_of(layout.groups(), size_, rank_);
    // Rows that are no multiple of 64 have padding in every row, more than the capacity foresaw: these may grow.
    sender_.assign(layout.groups() * kGroup, 0.0F);
    owner_.assign(owned_.size() * kGroup, 0.0F);
    pass_ = Pass{layout, rotation};
    return;
  }
  require(pass_->layout == layout && pass_->rotation == rotation, ErrorCode::kState, "feedback: the pass began with ",
          pass_->layout.count(), " elements, row length ", pass_->layout.row_length(), ", rotation ",
          on_off(pass_->rotation), "; this call has ", layout.count(), " elements, row length ", layout.row_length(),
          ", rotation ", on_off(rotation), "; reset the feedback to begin a new pass");
}

std::size_t Feedback::bytes() const { return (sender_.capacity() + owner_.capacity()) * sizeof(float); }

float Feedback::sender_norm() const { return pass_ ? largest(sender_) : 0.0F; }

float Feedback::owner_norm() const { return pass_ ? largest(owner_) : 0.0F; }

}  // namespace echo_comm::core
