// What a communicator counted since its creation.
#pragma once

#include <cstdint>

namespace echo_comm::core {

struct Counters {
  uint64_t coded_calls = 0;
  uint64_t exact_calls = 0;
  uint64_t table_exact_calls = 0;  // of the exact calls: the table decided, not the caller
  uint64_t passed_calls = 0;
  uint64_t one_shot_calls = 0;
  uint64_t flush_calls = 0;
  uint64_t control_calls = 0;  // broadcasts and barriers
  uint64_t logical_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t messages = 0;
  uint64_t poisoned_groups = 0;

  Counters& operator+=(const Counters& other) {
    coded_calls += other.coded_calls;
    exact_calls += other.exact_calls;
    table_exact_calls += other.table_exact_calls;
    passed_calls += other.passed_calls;
    one_shot_calls += other.one_shot_calls;
    flush_calls += other.flush_calls;
    control_calls += other.control_calls;
    logical_bytes += other.logical_bytes;
    payload_bytes += other.payload_bytes;
    messages += other.messages;
    poisoned_groups += other.poisoned_groups;
    return *this;
  }
};

}  // namespace echo_comm::core
