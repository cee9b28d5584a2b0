// A library to preload: collectives whose result has one wrong element, on the rank that CORRUPT_RANK names or on all;
// codecs, except the reference, whose result has one wrong byte when they are asked for by name. With it the tests see
// that echo-perf and echo-info --doctor notice.
#include <dlfcn.h>

#include <cstdlib>
#include <string_view>

#include "echo_comm/echo.h"

namespace {

template <class Function>
Function* real(Function* /*what*/, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void corrupt(const echo_range_t* range, void* result) {
  if (range->codec != nullptr && std::string_view(range->codec) != "reference") {
    static_cast<unsigned char*>(result)[0] ^= 1U;
  }
}

void corrupt(void* out, size_t count, echo_dtype_t dtype, echo_comm_t comm) {
  const char* rank = std::getenv("CORRUPT_RANK");
  if (count > 0 && (rank == nullptr || std::atoi(rank) == echo_comm_rank(comm))) {
    static_cast<unsigned char*>(out)[dtype == ECHO_FLOAT32 ? 3 : 1] ^= 1U;  // the exponent
  }
}

}  // namespace

extern "C" ECHO_API echo_result_t echo_all_reduce(const void* in, void* out, size_t count, echo_dtype_t dtype,
                                                  echo_comm_t comm, echo_feedback_t feedback, const echo_call_t* call) {
  const echo_result_t result = real(&echo_all_reduce, "echo_all_reduce")(in, out, count, dtype, comm, feedback, call);
  corrupt(out, count, dtype, comm);
  return result;
}

extern "C" ECHO_API echo_result_t echo_reduce_scatter(const void* in, void* out, size_t count, const size_t* counts,
                                                      echo_dtype_t dtype, echo_comm_t comm, echo_feedback_t feedback,
                                                      const echo_call_t* call) {
  const echo_result_t result =
      real(&echo_reduce_scatter, "echo_reduce_scatter")(in, out, count, counts, dtype, comm, feedback, call);
  corrupt(out, counts[echo_comm_rank(comm)], dtype, comm);
  return result;
}

extern "C" ECHO_API echo_result_t echo_all_gather(const void* in, void* out, size_t count, const size_t* counts,
                                                  echo_dtype_t dtype, echo_comm_t comm, const echo_call_t* call) {
  const echo_result_t result = real(&echo_all_gather, "echo_all_gather")(in, out, count, counts, dtype, comm, call);
  corrupt(out, count, dtype, comm);
  return result;
}

extern "C" ECHO_API echo_result_t echo_encode(const echo_range_t* range, const void* in,
                                              const echo_residuals_t* residuals, void* encoded, uint64_t* poisoned) {
  const echo_result_t result = real(&echo_encode, "echo_encode")(range, in, residuals, encoded, poisoned);
  corrupt(range, encoded);
  return result;
}

extern "C" ECHO_API echo_result_t echo_reduce(const echo_range_t* range, const void* const* encoded, int size, int rank,
                                              const void* in, const echo_residuals_t* residuals, int batch_invariant,
                                              int divisor, void* out_encoded, uint64_t* poisoned) {
  const echo_result_t result = real(&echo_reduce, "echo_reduce")(range, encoded, size, rank, in, residuals,
                                                                 batch_invariant, divisor, out_encoded, poisoned);
  corrupt(range, residuals->owner != nullptr ? residuals->owner : out_encoded);
  return result;
}

extern "C" ECHO_API echo_result_t echo_decode(const echo_range_t* range, const void* const* encoded, int parts,
                                              int divisor, int add, const echo_residuals_t* residuals, void* out,
                                              uint64_t* poisoned) {
  const echo_result_t result =
      real(&echo_decode, "echo_decode")(range, encoded, parts, divisor, add, residuals, out, poisoned);
  corrupt(range, out);
  return result;
}
