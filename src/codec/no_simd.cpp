// Stands in for simd.cpp where Highway is not there: the reference codec does the work.
#include "codec/simd.hpp"

namespace echo_comm::core {

std::vector<const Codec*> vector_codecs() { return {}; }

std::vector<const Codec*> emulated_codecs() { return {}; }

}  // namespace echo_comm::core
