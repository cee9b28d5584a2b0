#include <array>
#include <cstdint>
#include <vector>

#include "api/handles.hpp"

namespace echo_comm::core {
namespace {

echo_call_t read_call(const echo_call_t* given) {
  const echo_call_t call = read_struct(given, echo_call_t ECHO_CALL_INITIALIZER, "call");
  require(call.op == ECHO_SUM || call.op == ECHO_AVG, ErrorCode::kArgument, "op: ", static_cast<int>(call.op),
          " is not ECHO_SUM (0) or ECHO_AVG (4)");
  require(call.flush == 0 || call.flush == 1, ErrorCode::kArgument, "flush: ", call.flush, " is not 0 or 1");
  require(call.algorithm >= ECHO_ALGORITHM_AUTO && call.algorithm <= ECHO_TWO_SHOT, ErrorCode::kArgument,
          "algorithm: ", static_cast<int>(call.algorithm), " is not 0 (auto), 1 (one-shot) or 2 (two-shot)");
  return call;
}

// Which part of the other buffer `in place` refers to: the buffers are the same there, and apart otherwise.
void check_overlap(const void* in, int64_t in_bytes, const void* out, int64_t out_bytes, int64_t offset_in_whole,
                   bool out_is_whole) {
  if (in_bytes == 0 || out_bytes == 0) return;
  const auto first = reinterpret_cast<uintptr_t>(in);
  const auto second = reinterpret_cast<uintptr_t>(out);
  const auto offset = static_cast<uintptr_t>(offset_in_whole);
  if (out_is_whole ? first == second + offset : second == first + offset) return;
  const bool apart =
      first + static_cast<uintptr_t>(in_bytes) <= second || second + static_cast<uintptr_t>(out_bytes) <= first;
  require(apart, ErrorCode::kArgument, "in and out overlap; pass in == out",
          offset_in_whole != 0 || in_bytes != out_bytes ? " at this rank's own part" : "",
          " (in place) or separate buffers");
}

Partition read_parts(echo_comm_t comm, size_t count, const size_t* counts, const echo_call_t& call) {
  const int size = comm->communicator.size();
  const int64_t whole = read_count(count, "count");
  std::vector<int64_t> parts(static_cast<size_t>(size), whole / size);
  if (counts == nullptr) {
    require(whole % size == 0, ErrorCode::kArgument, "count: ", whole, " elements do not fall into ", size,
            " equal parts; pass counts");
  } else {
    int64_t sum = 0;
    for (size_t rank = 0; rank < parts.size(); ++rank) sum += parts[rank] = read_count(counts[rank], "counts");
    require(sum == whole, ErrorCode::kArgument, "counts add up to ", sum, ", but count is ", whole);
  }
  return Partition::parts(parts, read_count(call.row_length, "row_length"));
}

Request begin_request(Collective collective, Partition partition, echo_dtype_t dtype, echo_comm_t comm,
                      echo_feedback_t feedback, const echo_call_t& call) {
  require(partition.row_length() <= UINT32_MAX, ErrorCode::kArgument, "row length ", partition.row_length(),
          " is more than ", UINT32_MAX);
  require(feedback == nullptr || feedback->communicator == comm, ErrorCode::kState,
          "feedback was created with another communicator");
  Request request{.wish = read_wish(&call), .partition = std::move(partition), .dtype = read_dtype(dtype)};
  request.wish.collective = collective;
  request.wish.count = request.partition.count();
  request.wish.feedback = feedback != nullptr;
  request.average = call.op == ECHO_AVG;
  request.flush = call.flush == 1;
  if (feedback != nullptr) request.feedback = feedback->use();
  return request;
}

void require_comm(echo_comm_t comm) { require(comm != nullptr, ErrorCode::kArgument, "comm is NULL"); }

Request all_reduce_request(const void* in, void* out, size_t count, echo_dtype_t dtype, echo_comm_t comm,
                           echo_feedback_t feedback, const echo_call_t* call) {
  require_comm(comm);
  const echo_call_t options = read_call(call);
  const GroupLayout layout(read_count(count, "count"), read_count(options.row_length, "row_length"));
  Request request = begin_request(Collective::kAllReduce, Partition::chunks(layout, comm->communicator.size()), dtype,
                                  comm, feedback, options);
  const int64_t bytes = layout.count() * element_size(request.dtype);
  check_buffer(in, layout.count(), request.dtype, "in");
  check_buffer(out, layout.count(), request.dtype, "out");
  check_overlap(in, bytes, out, bytes, 0, true);
  request.in = in;
  request.out = out;
  return request;
}

// Both collectives whose tensor falls into parts: one buffer is the whole, the other this rank's part.
Request parts_request(Collective collective, const void* in, void* out, size_t count, const size_t* counts,
                      echo_dtype_t dtype, echo_comm_t comm, echo_feedback_t feedback, const echo_call_t* call) {
  require_comm(comm);
  const echo_call_t options = read_call(call);
  Request request = begin_request(collective, read_parts(comm, count, counts, options), dtype, comm, feedback, options);
  const bool scatters = collective == Collective::kReduceScatter;
  require(scatters || !request.average, ErrorCode::kArgument, "op: all_gather adds nothing, ECHO_AVG has no meaning");
  require(request.wish.algorithm == Algorithm::kAuto, ErrorCode::kArgument,
          "algorithm: only all_reduce has one-shot and two-shot");
  const Partition::Piece& own = request.partition.of(comm->communicator.rank());
  const int64_t in_count = scatters ? request.partition.count() : own.layout.count();
  const int64_t out_count = scatters ? own.layout.count() : request.partition.count();
  const int64_t each = element_size(request.dtype);
  check_buffer(in, in_count, request.dtype, "in");
  check_buffer(out, out_count, request.dtype, "out");
  check_overlap(in, in_count * each, out, out_count * each, own.first_element * each, !scatters);
  request.in = in;
  request.out = out;
  return request;
}

Request control_request(Collective collective, int64_t count, Dtype dtype, echo_comm_t comm) {
  return {.wish = control_wish(collective, count),
          .partition = Partition::chunks(GroupLayout(count, 0), comm->communicator.size()),
          .dtype = dtype};
}

}  // namespace

Wish read_wish(const echo_call_t* given) {
  const echo_call_t call = read_call(given);
  constexpr int kBits = 4;
  constexpr int kFlushBits = 8;
  return {.format = read_format(call.bits, call.flush == 1 ? kFlushBits : kBits, call.rotation),
          .bits_given = call.bits != 0,
          .algorithm = static_cast<Algorithm>(call.algorithm)};
}

namespace {

echo_result_t start(echo_request_t* started, const auto& make_request) {
  return guarded([&] {
    require(started != nullptr, ErrorCode::kArgument, "request is NULL");
    *started = nullptr;
    const auto& [comm, request] = make_request();
    *started = new echo_request_object{comm->communicator.start(request)};
  });
}

}  // namespace
}  // namespace echo_comm::core

// ---- blocking ----------------------------------------------------------------------------------------------------

echo_result_t echo_all_reduce(const void* in, void* out, size_t count, echo_dtype_t dtype, echo_comm_t comm,
                              echo_feedback_t feedback, const echo_call_t* call) {
  using namespace echo_comm::core;
  return guarded([&] {
    const Request request = all_reduce_request(in, out, count, dtype, comm, feedback, call);
    comm->communicator.run(request);
  });
}

echo_result_t echo_reduce_scatter(const void* in, void* out, size_t count, const size_t* counts, echo_dtype_t dtype,
                                  echo_comm_t comm, echo_feedback_t feedback, const echo_call_t* call) {
  using namespace echo_comm::core;
  return guarded([&] {
    const Request request =
        parts_request(Collective::kReduceScatter, in, out, count, counts, dtype, comm, feedback, call);
    comm->communicator.run(request);
  });
}

echo_result_t echo_all_gather(const void* in, void* out, size_t count, const size_t* counts, echo_dtype_t dtype,
                              echo_comm_t comm, const echo_call_t* call) {
  using namespace echo_comm::core;
  return guarded([&] {
    const Request request = parts_request(Collective::kAllGather, in, out, count, counts, dtype, comm, nullptr, call);
    comm->communicator.run(request);
  });
}

echo_result_t echo_broadcast(const void* in, void* out, size_t count, echo_dtype_t dtype, int root, echo_comm_t comm) {
  using namespace echo_comm::core;
  return guarded([&] {
    require_comm(comm);
    const Communicator& communicator = comm->communicator;
    require(root >= 0 && root < communicator.size(), ErrorCode::kArgument, "root: ", root, "; expected 0 to ",
            communicator.size() - 1);
    Request request = control_request(Collective::kBroadcast, read_count(count, "count"), read_dtype(dtype), comm);
    const int64_t elements = request.partition.count();
    const int64_t bytes = elements * element_size(request.dtype);
    if (communicator.rank() == root) {
      check_buffer(in, elements, request.dtype, "in");
      check_overlap(in, bytes, out, bytes, 0, true);
    }
    check_buffer(out, elements, request.dtype, "out");
    request.in = in;
    request.out = out;
    request.root = root;
    comm->communicator.run(request);
  });
}

echo_result_t echo_barrier(echo_comm_t comm) {
  using namespace echo_comm::core;
  return guarded([&] {
    require_comm(comm);
    comm->communicator.run(control_request(Collective::kBarrier, 0, Dtype::kFloat32, comm));
  });
}

// ---- started -----------------------------------------------------------------------------------------------------

echo_result_t echo_all_reduce_start(const void* in, void* out, size_t count, echo_dtype_t dtype, echo_comm_t comm,
                                    echo_feedback_t feedback, const echo_call_t* call, echo_request_t* request) {
  using namespace echo_comm::core;
  return start(request,
               [&] { return std::pair(comm, all_reduce_request(in, out, count, dtype, comm, feedback, call)); });
}

echo_result_t echo_reduce_scatter_start(const void* in, void* out, size_t count, const size_t* counts,
                                        echo_dtype_t dtype, echo_comm_t comm, echo_feedback_t feedback,
                                        const echo_call_t* call, echo_request_t* request) {
  using namespace echo_comm::core;
  return start(request, [&] {
    return std::pair(comm,
                     parts_request(Collective::kReduceScatter, in, out, count, counts, dtype, comm, feedback, call));
  });
}

echo_result_t echo_all_gather_start(const void* in, void* out, size_t count, const size_t* counts, echo_dtype_t dtype,
                                    echo_comm_t comm, const echo_call_t* call, echo_request_t* request) {
  using namespace echo_comm::core;
  return start(request, [&] {
    return std::pair(comm, parts_request(Collective::kAllGather, in, out, count, counts, dtype, comm, nullptr, call));
  });
}

echo_result_t echo_test(echo_request_t request, int* done) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(request != nullptr && done != nullptr, ErrorCode::kArgument, "request or done is NULL");
    *done = request->ticket->done() ? 1 : 0;
  });
}

echo_result_t echo_wait(echo_request_t request) {
  using namespace echo_comm::core;
  const std::unique_ptr<echo_request_object> ended(request);
  return guarded([&] {
    require(request != nullptr, ErrorCode::kArgument, "request is NULL");
    ended->ticket->wait();
  });
}
