// In place of load.cpp when Echo was built without Gloo.
#include "transport/gloo/gloo.hpp"

namespace echo_comm::core {
namespace {

constexpr const char* kWhy =
    "gloo: this library was built without Gloo; install its development files (Debian: libgloo-dev) and build again "
    "with -DECHO_WITH_GLOO=ON";

}  // namespace

std::unique_ptr<Transport> create_gloo(const GlooOptions& /*options*/) { fail(ErrorCode::kSystem, kWhy); }

std::vector<std::unique_ptr<Transport>> create_gloo_in_process(int /*size*/, int64_t /*slot_bytes*/,
                                                               std::chrono::milliseconds /*timeout*/) {
  fail(ErrorCode::kSystem, kWhy);
}

std::optional<std::string> gloo_missing() { return kWhy; }

}  // namespace echo_comm::core
