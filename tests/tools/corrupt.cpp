// A library to preload: all-reduces whose result has one wrong element, on the rank that CORRUPT_RANK names or on all.
// With it the tests see that echo-perf and echo-info --doctor notice.
#include <dlfcn.h>

#include <cstdlib>

#include "echo_comm/echo.h"

extern "C" ECHO_API echo_result_t echo_all_reduce(const void* in, void* out, size_t count, echo_dtype_t dtype,
                                                  echo_comm_t comm, echo_feedback_t feedback, const echo_call_t* call) {
  static const auto real = reinterpret_cast<decltype(&echo_all_reduce)>(dlsym(RTLD_NEXT, "echo_all_reduce"));
  const echo_result_t result = real(in, out, count, dtype, comm, feedback, call);
  const char* rank = std::getenv("CORRUPT_RANK");
  if (count > 0 && (rank == nullptr || std::atoi(rank) == echo_comm_rank(comm))) {
    static_cast<unsigned char*>(out)[dtype == ECHO_FLOAT32 ? 3 : 1] ^= 1U;  // the exponent
  }
  return result;
}
