#include <cstdint>

#include "api/handles.hpp"

namespace echo_comm::core {
namespace {

CallOptions read_call(const echo_call_t* given) {
  const echo_call_t call = read_struct(given, echo_call_t ECHO_CALL_INITIALIZER, "call");
  require(call.op == ECHO_SUM || call.op == ECHO_AVG, ErrorCode::kArgument, "op: ", static_cast<int>(call.op),
          " is not ECHO_SUM (0) or ECHO_AVG (4)");
  require(call.flush == 0 || call.flush == 1, ErrorCode::kArgument, "flush: ", call.flush, " is not 0 or 1");
  require(call.algorithm >= ECHO_ALGORITHM_AUTO && call.algorithm <= ECHO_TWO_SHOT, ErrorCode::kArgument,
          "algorithm: ", static_cast<int>(call.algorithm), " is not 0 (auto), 1 (one-shot) or 2 (two-shot)");
  constexpr int kBits = 4;
  constexpr int kFlushBits = 8;
  CallOptions options;
  options.format = read_format(call.bits, call.flush == 1 ? kFlushBits : kBits, call.rotation);
  options.average = call.op == ECHO_AVG;
  options.flush = call.flush == 1;
  options.algorithm = static_cast<Algorithm>(call.algorithm);
  options.row_length = read_count(call.row_length, "row_length");
  return options;
}

void check_overlap(const void* in, const void* out, int64_t bytes) {
  if (in == out || bytes == 0) return;
  const auto first = reinterpret_cast<uintptr_t>(in);
  const auto second = reinterpret_cast<uintptr_t>(out);
  const uintptr_t distance = first > second ? first - second : second - first;
  require(distance >= static_cast<uintptr_t>(bytes), ErrorCode::kArgument, "in and out overlap by ",
          static_cast<uintptr_t>(bytes) - distance, " bytes; pass equal pointers (in place) or separate buffers");
}

}  // namespace
}  // namespace echo_comm::core

echo_result_t echo_all_reduce(const void* in, void* out, size_t count, echo_dtype_t dtype, echo_comm_t comm,
                              echo_feedback_t feedback, const echo_call_t* call) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(comm != nullptr, ErrorCode::kArgument, "comm is NULL");
    const Dtype type = read_dtype(dtype);
    const int64_t elements = read_count(count, "count");
    const CallOptions options = read_call(call);
    check_buffer(in, elements, type, "in");
    check_buffer(out, elements, type, "out");
    check_overlap(in, out, elements * element_size(type));
    require(feedback == nullptr || feedback->communicator == comm, ErrorCode::kState,
            "feedback was created with another communicator");
    comm->communicator.all_reduce(in, out, elements, type, feedback == nullptr ? nullptr : &feedback->feedback,
                                  options);
  });
}

echo_result_t echo_feedback_create(echo_comm_t comm, size_t capacity, echo_store_t store, echo_feedback_t* feedback) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(comm != nullptr, ErrorCode::kArgument, "comm is NULL");
    require(feedback != nullptr, ErrorCode::kArgument, "feedback is NULL");
    *feedback = nullptr;
    const int64_t elements = read_count(capacity, "capacity");
    const Communicator& communicator = comm->communicator;
    const std::optional<Store> wanted = read_store(store);
    *feedback = new echo_feedback_object{comm, Feedback(elements, communicator.rank(), communicator.size(), wanted)};
  });
}

echo_result_t echo_feedback_reset(echo_feedback_t feedback) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(feedback != nullptr, ErrorCode::kArgument, "feedback is NULL");
    feedback->feedback.reset();
  });
}

size_t echo_feedback_bytes(echo_feedback_t feedback) { return feedback == nullptr ? 0 : feedback->feedback.bytes(); }

echo_result_t echo_feedback_norms(echo_feedback_t feedback, float* sender_max, float* owner_max) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(feedback != nullptr && sender_max != nullptr && owner_max != nullptr, ErrorCode::kArgument,
            "feedback, sender_max or owner_max is NULL");
    *sender_max = feedback->feedback.sender_norm();
    *owner_max = feedback->feedback.owner_norm();
  });
}

void echo_feedback_destroy(echo_feedback_t feedback) { delete feedback; }
