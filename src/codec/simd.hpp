// The vector codecs this processor can run, best first.
#pragma once

#include <vector>

#include "codec/codec.hpp"

namespace echo_comm::core {

std::vector<const Codec*> vector_codecs();

// The same on vectors made of scalars: for tests of the vector code on any processor, slower than the reference.
std::vector<const Codec*> emulated_codecs();

}  // namespace echo_comm::core
