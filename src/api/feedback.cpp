#include <cstring>
#include <utility>
#include <vector>

#include "api/handles.hpp"

namespace echo_comm::core {
namespace {

// Its residuals belong to the calls under way.
Feedback& idle(echo_feedback_t feedback) {
  require(feedback != nullptr, ErrorCode::kArgument, "feedback is NULL");
  require(feedback->in_flight->load(std::memory_order_acquire) == 0, ErrorCode::kState,
          "feedback: a started call still uses it; wait for the call first");
  return *feedback->feedback;
}

}  // namespace
}  // namespace echo_comm::core

std::shared_ptr<echo_comm::core::Feedback> echo_feedback_object::use() const {
  // The last copy of what this returns counts the request as ended.
  const auto release = [kept = feedback, counter = in_flight](echo_comm::core::Feedback* /*kept alive by `kept`*/) {
    counter->fetch_sub(1, std::memory_order_release);
  };
  in_flight->fetch_add(1, std::memory_order_relaxed);
  return {feedback.get(), release};
}

echo_result_t echo_feedback_create(echo_comm_t comm, size_t capacity, echo_store_t store, echo_feedback_t* feedback) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(comm != nullptr, ErrorCode::kArgument, "comm is NULL");
    require(feedback != nullptr, ErrorCode::kArgument, "feedback is NULL");
    *feedback = nullptr;
    const int64_t elements = read_count(capacity, "capacity");
    const Communicator& communicator = comm->communicator;
    auto state = std::make_shared<Feedback>(elements, communicator.rank(), communicator.size(), read_store(store));
    *feedback = new echo_feedback_object{comm, std::move(state), std::make_shared<std::atomic<int64_t>>(0)};
  });
}

echo_result_t echo_feedback_reset(echo_feedback_t feedback) {
  using namespace echo_comm::core;
  return guarded([&] { idle(feedback).reset(); });
}

size_t echo_feedback_bytes(echo_feedback_t feedback) { return feedback == nullptr ? 0 : feedback->feedback->bytes(); }

echo_result_t echo_feedback_norms(echo_feedback_t feedback, float* sender_max, float* owner_max) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(feedback != nullptr && sender_max != nullptr && owner_max != nullptr, ErrorCode::kArgument,
            "feedback, sender_max or owner_max is NULL");
    Feedback& state = idle(feedback);
    *sender_max = state.sender_norm();
    *owner_max = state.owner_norm();
  });
}

echo_result_t echo_feedback_save(echo_feedback_t feedback, void* state, size_t* bytes) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(bytes != nullptr, ErrorCode::kArgument, "bytes is NULL");
    const std::vector<std::byte> saved = idle(feedback).save();
    const std::size_t room = std::exchange(*bytes, saved.size());
    if (state == nullptr) return;
    require(room >= saved.size(), ErrorCode::kArgument, "feedback: its state has ", saved.size(),
            " bytes, there is room for ", room);
    std::memcpy(state, saved.data(), saved.size());
  });
}

echo_result_t echo_feedback_load(echo_feedback_t feedback, const void* state, size_t bytes) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(state != nullptr || bytes == 0, ErrorCode::kArgument, "state is NULL");
    idle(feedback).load({static_cast<const std::byte*>(state), bytes});
  });
}

void echo_feedback_destroy(echo_feedback_t feedback) { delete feedback; }
