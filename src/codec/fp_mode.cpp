#include "codec/fp_mode.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#error "fp_mode.cpp: tell Echo how to set rounding and denormals on this processor"
#endif

// These functions stay in a file of their own: a call that the compiler cannot look into is what keeps floating-point
// code from moving across the change of mode.
namespace echo_comm::core {
namespace {

#if defined(__x86_64__)
constexpr unsigned kDefaultMxcsr = 0x1F80;  // all exceptions masked, round to nearest, denormals neither read nor
                                            // written as zero
uint64_t read_mode() { return _mm_getcsr(); }
void write_mode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
constexpr uint64_t kDefaultMode = kDefaultMxcsr;
#else
uint64_t read_mode() {
  uint64_t mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void write_mode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
constexpr uint64_t kDefaultMode = 0;
#endif

}  // namespace

FpModeGuard::FpModeGuard() noexcept : saved_(read_mode()) { write_mode(kDefaultMode); }
FpModeGuard::~FpModeGuard() { write_mode(saved_); }

}  // namespace echo_comm::core
