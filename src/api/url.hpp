// Transport URLs: shm://NAME?rank=R&size=W and gloo+file:///DIRECTORY?rank=R&size=W.
#pragma once

#include <string>
#include <string_view>

namespace echo_comm::core {

struct TransportUrl {
  enum class Kind { kShm, kGlooFile };

  Kind kind = Kind::kShm;
  std::string name;       // of shm; the directory of gloo+file
  std::string interface;  // gloo+file: iface=, host=; empty when not given
  std::string host;
  int rank = 0;
  int size = 0;
};

// Throws kArgument with the part that is wrong and the form that is expected.
TransportUrl parse_url(std::string_view url);

}  // namespace echo_comm::core
