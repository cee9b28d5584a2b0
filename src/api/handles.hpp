// Room api: the C boundary. Checks arguments, translates names and errors; nothing is thrown across it.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "collective/communicator.hpp"
#include "echo_comm/echo.h"

struct echo_comm_object {
  echo_comm::core::Communicator communicator;
  std::string table_text;  // what echo_comm_table() gave last
};

struct echo_feedback_object {
  // Identifies the communicator it was created with; compared, never followed.
  const echo_comm_object* communicator;
  std::shared_ptr<echo_comm::core::Feedback> feedback;
  std::shared_ptr<std::atomic<int64_t>> in_flight;  // requests that hold the feedback

  // For one request. The residuals live as long as it does, even if this object is destroyed before.
  [[nodiscard]] std::shared_ptr<echo_comm::core::Feedback> use() const;
};

struct echo_request_object {
  std::shared_ptr<echo_comm::core::Ticket> ticket;
};

namespace echo_comm::core {

// Remembers the text for echo_last_error() of this thread and returns the result.
echo_result_t remember(ErrorCode code, const char* error_text) noexcept;

// Runs body; every exception becomes a result with a text.
template <typename Body>
echo_result_t guarded(const Body& body) noexcept {
  try {
    body();
    return ECHO_SUCCESS;
  } catch (const Error& error) {
    return remember(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return remember(ErrorCode::kMemory, "out of memory");
  } catch (const std::exception& error) {
    return remember(ErrorCode::kInternal, error.what());
  } catch (...) {
    return remember(ErrorCode::kInternal, "unknown exception");
  }
}

// A struct of the caller, which may have been compiled against an older header with a shorter struct: fields it does
// not know keep their default. A longer one is of a newer header, whose fields this library does not know.
template <typename Struct>
Struct read_struct(const Struct* given, const Struct& defaults, const char* name) {
  Struct result = defaults;
  if (given == nullptr) return result;
  require(given->size >= sizeof(std::size_t) && given->size <= sizeof(Struct), ErrorCode::kArgument, name, ": size is ",
          given->size, ", this library knows up to ", sizeof(Struct), "; fill the struct with its _INITIALIZER");
  __builtin_memcpy(static_cast<void*>(&result), given, given->size);
  result.size = sizeof(Struct);
  return result;
}

bool read_switch(echo_switch_t value, bool otherwise, const char* name);
Dtype read_dtype(echo_dtype_t dtype);
Format read_format(int bits, int default_bits, echo_switch_t rotation);
std::optional<Store> read_store(echo_store_t store);  // none: ECHO_STORE_AUTO
// What the call's options ask for; of the collective's own the caller fills in the rest. The format of bits 0 is 4, or 8 at
// a flush.
Wish read_wish(const echo_call_t* call);
int64_t read_count(std::size_t count, const char* name);

// Null only when there is nothing to read or write; aligned to the element size.
void check_buffer(const void* buffer, int64_t elements, Dtype dtype, const char* name);

}  // namespace echo_comm::core
