#include <stdexcept>

#include "echo_perf/rival.hpp"

namespace echo_comm::tools {

std::string gloo_rival_missing() {
  return "this echo-perf was built without Gloo; install libgloo-dev and build again, or take another of exact, "
         "stream, "
         "none";
}

std::unique_ptr<Rival> make_gloo_rival(const Exchange& /*exchange*/, const RivalSettings& /*settings*/) {
  throw std::runtime_error(gloo_rival_missing());
}

}  // namespace echo_comm::tools
