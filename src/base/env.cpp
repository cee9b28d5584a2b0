#include "base/env.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

int64_t read_number(const char* name, int64_t low, int64_t high, int64_t otherwise) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return otherwise;
  int64_t number = 0;
  const char* end = value + std::strlen(value);
  const auto parsed = std::from_chars(value, end, number);
  require(parsed.ec == std::errc() && parsed.ptr == end && number >= low && number <= high, ErrorCode::kArgument, name,
          "=", value, ": expected a whole number from ", low, " to ", high);
  return number;
}

}  // namespace

Env Env::read() {
  Env env;
  env.timeout_ms = read_number("ECHO_TIMEOUT_MS", 1, 86'400'000, env.timeout_ms);
  env.slot_bytes = read_number("ECHO_SHM_SLOT_BYTES", 4096, 64 << 20, env.slot_bytes);
  if (const char* codec = std::getenv("ECHO_CODEC"); codec != nullptr) env.codec = codec;
  env.threads = read_number("ECHO_THREADS", 1, 256, env.threads);
  if (const char* table = std::getenv("ECHO_TABLE"); table != nullptr) env.table = table;
  env.tune = read_number("ECHO_TUNE", 0, 1, 0) == 1;
  env.debug = read_number("ECHO_DEBUG", 0, 1, 0) == 1;
  return env;
}

}  // namespace echo_comm::core
