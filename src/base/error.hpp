// Room base: what every other room may use. Errors, checked arithmetic, environment, log, deadlines.
//
// Inside the library errors are exceptions of one type; api/ turns them into results at the C boundary.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>

namespace echo_comm::core {

// The values of echo_result_t (static_asserts in api/); base must not know the public header.
enum class ErrorCode : int {
  kArgument = 1,
  kState = 2,
  kMismatch = 3,
  kTimeout = 4,
  kPeer = 5,
  kAborted = 6,
  kSystem = 7,
  kMemory = 8,
  kInternal = 9,
};

class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string text) : code_(code), text_(std::move(text)) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  ErrorCode code_;
  std::string text_;
};

// "shm: ", 64, " MiB" -> one string. For messages, not for hot paths.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, text(parts...));
}

template <typename... Parts>
void require(bool holds, ErrorCode code, const Parts&... parts) {
  if (!holds) fail(code, parts...);
}

// "what: reason of errno"; the number is taken by the caller before anything can change it.
[[noreturn]] void fail_errno(ErrorCode code, const std::string& what, int error_number);

}  // namespace echo_comm::core
