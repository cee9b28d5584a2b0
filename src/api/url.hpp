// Transport URLs: shm://NAME?rank=R&size=W.
#pragma once

#include <string>
#include <string_view>

namespace echo_comm::core {

struct TransportUrl {
  std::string name;
  int rank = 0;
  int size = 0;
};

// Throws kArgument with the part that is wrong and the form that is expected.
TransportUrl parse_url(std::string_view url);

}  // namespace echo_comm::core
