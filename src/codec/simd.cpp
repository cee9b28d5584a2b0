// The vector codec: the sweeps over a kernel on Highway vectors, compiled once for each instruction set. Equal to the
// reference bit for bit.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include "codec/codec.hpp"
#include "codec/element.hpp"
#include "codec/fp_mode.hpp"
#include "codec/group.hpp"
#include "codec/simd.hpp"

// Highway has its reason to distrust emulated vectors on some compilers; ours are tested against the reference.
// Processors with SSSE3 but without SSE4 are rare; they take the scalar codec. One SVE codec serves every vector length.
#define HWY_BROKEN_EMU128 0
#define HWY_IS_DEBUG_BUILD 0        // its assertions would abort, and need its library
#if defined(ECHO_SIMD_FEW_TARGETS)  // sanitized builds: each target compiles for more than a minute there
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#define HWY_WANT_AVX3_DL  // AVX-512 with the newer byte permutes

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace echo_comm::core {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#include "codec/sweep-inl.hpp"

#include "codec/kernel-inl.hpp"

}  // namespace

const Codec& vector_codec() {
  static const SweepCodec<VectorKernel> codec;
  return codec;
}

}  // namespace HWY_NAMESPACE
}  // namespace echo_comm::core
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace echo_comm::core {
namespace {

// What the instruction sets above need, beyond what Highway's attributes of them imply. Asked from the compiler's
// run-time, so that Highway stays a matter of headers and the library needs no other library.
#if HWY_ARCH_X86
// cpuid: F16C and VAES are names that not every compiler's run-time knows.
bool cpuid_bit(unsigned leaf, bool ecx_word, int bit) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(leaf, 0, &a, &b, &c, &d) == 0) return false;
  return (((ecx_word ? c : b) >> bit) & 1U) != 0;
}
bool has_f16c() { return cpuid_bit(1, true, 29); }
bool has_vaes() { return cpuid_bit(7, true, 9); }
[[maybe_unused]] bool has_sse4() {
  return __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
         __builtin_cpu_supports("aes");
}
[[maybe_unused]] bool has_avx2() {
  return has_sse4() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_f16c();
}
[[maybe_unused]] bool has_avx3() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd");
}
[[maybe_unused]] bool has_avx3_dl() {
  return has_avx3() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("vpclmulqdq") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
         __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bitalg") && has_vaes();
}
#endif
#if HWY_TARGETS & HWY_SVE
// Bytes of an SVE vector; 0 without SVE.
int sve_bytes() {
#if defined(HWCAP_SVE) && defined(PR_SVE_GET_VL)
  if ((getauxval(AT_HWCAP) & HWCAP_SVE) != 0) return prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK;
#endif
  return 0;
}
#endif

}  // namespace

std::vector<const Codec*> vector_codecs() {
  std::vector<const Codec*> codecs;
#if HWY_ARCH_X86
#if HWY_TARGETS & HWY_AVX3_DL
  if (has_avx3_dl()) codecs.push_back(&N_AVX3_DL::vector_codec());
#endif
#if HWY_TARGETS & HWY_AVX3
  if (has_avx3()) codecs.push_back(&N_AVX3::vector_codec());
#endif
#if HWY_TARGETS & HWY_AVX2
  if (has_avx2()) codecs.push_back(&N_AVX2::vector_codec());
#endif
#if HWY_TARGETS & HWY_SSE4
  if (has_sse4()) codecs.push_back(&N_SSE4::vector_codec());
#endif
#endif
#if HWY_TARGETS & HWY_SVE
  constexpr int kNeonBytes = 16;
  if (sve_bytes() > kNeonBytes) codecs.push_back(&N_SVE::vector_codec());
#endif
#if HWY_TARGETS & HWY_NEON
  codecs.push_back(&N_NEON::vector_codec());  // part of every 64-bit Arm processor
#endif
#if HWY_TARGETS & HWY_SVE
  if (sve_bytes() == kNeonBytes)
    codecs.push_back(&N_SVE::vector_codec());  // its groups lie in memory, NEON's in registers
#endif
  return codecs;
}

std::vector<const Codec*> emulated_codecs() {
#if HWY_TARGETS & HWY_EMU128
  return {&N_EMU128::vector_codec()};
#else
  return {};
#endif
}

}  // namespace echo_comm::core

#endif
