#include "echo_perf/codec_operands.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "common/element.hpp"
#include "common/inputs.hpp"

namespace echo_comm::tools {
namespace {

constexpr std::int64_t kScaleBytes = 2;  // bf16

GroupArray make_tensor(const CodecCase& what, std::int64_t groups) {
  return {groups, {ECHO_GROUP * static_cast<std::int64_t>(element_size(what.dtype))}};
}

GroupArray make_payload(const CodecCase& what, std::int64_t values) {
  const echo_range_t range = whole_range(what, values);
  std::size_t bytes = 0;
  check(echo_encoded_size(&range, &bytes));
  const std::int64_t groups = range.group_end;
  return {groups, {static_cast<std::int64_t>(bytes) / groups - kScaleBytes, kScaleBytes}};
}

GroupArray make_residual(const CodecCase& what, std::int64_t groups) {
  const std::int64_t scale = what.feedback == ECHO_STORE_FP32 ? 0 : kScaleBytes;
  return {groups, {echo_residual_bytes(1, *what.feedback) - scale, scale}};
}

}  // namespace

// ---- GroupArray -----------------------------------------------------------------------------------------------------

GroupArray::GroupArray(std::int64_t groups, std::vector<std::int64_t> planes)
    : groups_(groups),
      planes_(std::move(planes)),
      bytes_(groups * std::accumulate(planes_.begin(), planes_.end(), std::int64_t{0})),
      memory_(static_cast<std::size_t>(bytes_)) {
  std::memset(data(), 0, static_cast<std::size_t>(bytes_));  // touches the pages, too
}

template <class Body>
void GroupArray::for_each_plane(const GroupArray& slice, std::int64_t begin, Body&& body) const {
  std::byte* own = data();
  std::byte* sliced = slice.data();
  for (const std::int64_t bytes : planes_) {
    body(own + begin * bytes, sliced, static_cast<std::size_t>(slice.groups_ * bytes));
    own += groups_ * bytes;
    sliced += slice.groups_ * bytes;
  }
}

GroupArray GroupArray::slice(GroupSpan span) const {
  GroupArray slice(span.size(), planes_);
  for_each_plane(slice, span.begin,
                 [](const std::byte* own, std::byte* sliced, std::size_t bytes) { std::memcpy(sliced, own, bytes); });
  return slice;
}

std::uint64_t GroupArray::different(const GroupArray& slice, std::int64_t begin) const {
  std::uint64_t different = 0;
  for_each_plane(slice, begin, [&](const std::byte* own, const std::byte* sliced, std::size_t bytes) {
    different +=
        std::transform_reduce(own, own + bytes, sliced, std::uint64_t{0}, std::plus<>(), std::not_equal_to<>());
  });
  return different;
}

// ---- Operands -------------------------------------------------------------------------------------------------------

Operands::Operands(const CodecCase& what, std::int64_t values, GroupArray tensor, GroupArray payload)
    : what_(what),
      values_(values),
      groups_(whole_range(what, values).group_end),
      tensor_(std::move(tensor)),
      payload_(std::move(payload)) {}

Operands::Operands(const CodecCase& what)
    : Operands(what, what.values, make_tensor(what, whole_range(what, what.values).group_end),
               make_payload(what, what.values)) {
  if (what.feedback) {  // rounding of one tensor is owed when the call comes
    residuals_.push_back(make_residual(what, groups_));
    fill(what.ranks);
    encode(payload_, true);
    if (what.stage == Stage::kReduce) residuals_.push_back(residuals_.front().slice({0, groups_}));
  }
  for (int rank = 1; rank < what.ranks; ++rank) {
    inputs_.push_back(make_payload(what, values_));
    fill(rank);
    encode(inputs_.back(), false);
  }
  fill(0);
  if (what.stage == Stage::kDecode) encode(payload_, false);
}

// Random values of a rank, repeated.
void Operands::fill(int rank) {
  constexpr std::int64_t kPattern = std::int64_t{1} << 18;
  const std::int64_t values = std::min(values_, kPattern);
  fill_random(tensor_.data(), static_cast<std::size_t>(values), what_.dtype, rank);
  const auto element = static_cast<std::int64_t>(element_size(what_.dtype));
  const std::int64_t end = values_ * element;
  for (std::int64_t filled = values * element; filled < end; filled *= 2) {
    std::memcpy(tensor_.data() + filled, tensor_.data(), static_cast<std::size_t>(std::min(filled, end - filled)));
  }
}

// Makes an operand, with the codec in use.
void Operands::encode(const GroupArray& payload, bool with_residual) {
  const echo_range_t range = whole_range(what_, values_);
  const echo_residuals_t owed = residuals();
  check(echo_encode(&range, tensor_.data(), with_residual ? &owed : nullptr, payload.data(), nullptr));
}

echo_residuals_t Operands::residuals() const {
  echo_residuals_t residuals = ECHO_RESIDUALS_INITIALIZER;
  if (residuals_.empty()) return residuals;
  residuals.store = *what_.feedback;
  residuals.sender = residuals_.front().data();
  if (residuals_.size() > 1) residuals.owner = residuals_.back().data();
  residuals.owner_end = groups_;
  return residuals;
}

void Operands::run(const char* codec, GroupSpan part) {
  if (part.size() == 0) return;  // to the library, no part at all is the whole
  echo_range_t range = whole_range(what_, values_);
  range.codec = codec;
  range.part_begin = part.begin;
  range.part_end = part.end;
  const echo_residuals_t owed = residuals();
  constexpr int kDivisor = 1;
  switch (what_.stage) {
    case Stage::kEncode: check(echo_encode(&range, tensor_.data(), &owed, payload_.data(), nullptr)); return;
    case Stage::kReduce: {
      std::vector<const void*> payloads = {nullptr};  // the own one is not read
      for (const GroupArray& input : inputs_) payloads.push_back(input.data());
      check(echo_reduce(&range, payloads.data(), what_.ranks, 0, tensor_.data(), &owed, 0, kDivisor, payload_.data(),
                        nullptr));
      return;
    }
    case Stage::kDecode: {
      const void* payload = payload_.data();
      check(echo_decode(&range, &payload, 1, kDivisor, what_.add ? 1 : 0, nullptr, tensor_.data(), nullptr));
      return;
    }
  }
}

Operands Operands::slice(GroupSpan span) const {
  const std::int64_t values = std::min(values_, span.end * ECHO_GROUP) - span.begin * ECHO_GROUP;
  Operands slice(what_, values, tensor_.slice(span), payload_.slice(span));
  for (const GroupArray& residual : residuals_) slice.residuals_.push_back(residual.slice(span));
  for (const GroupArray& input : inputs_) slice.inputs_.push_back(input.slice(span));
  return slice;
}

std::uint64_t Operands::different(const Operands& slice, std::int64_t begin) const {
  std::uint64_t different = tensor_.different(slice.tensor_, begin) + payload_.different(slice.payload_, begin);
  for (std::size_t i = 0; i < residuals_.size(); ++i) {
    different += residuals_[i].different(slice.residuals_[i], begin);
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) different += inputs_[i].different(slice.inputs_[i], begin);
  return different;
}

}  // namespace echo_comm::tools
