// The vector codecs this processor can run, best first.
#pragma once

#include <vector>

#include "codec/codec.hpp"

namespace echo_comm::core {

std::vector<const Codec*> vector_codecs();

}  // namespace echo_comm::core
