#include "base/error.hpp"

#include <system_error>

namespace echo_comm::core {

void fail_errno(ErrorCode code, const std::string& what, int error_number) {
  fail(code, what, ": ", std::system_category().message(error_number));
}

}  // namespace echo_comm::core
