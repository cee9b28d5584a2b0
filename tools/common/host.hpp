// Facts about this host that decide whether and how fast Echo runs here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/build.hpp"

namespace echo_comm::tools {

struct HostFacts {
  std::string system;                   // kernel name, release and machine
  std::string cpu;                      // model, "unknown" where the kernel does not say
  int cores = 0;                        // that this process may use
  int64_t memory = 0;                   // bytes installed
  int64_t memory_available = 0;         // bytes that can be had without swapping
  std::optional<int64_t> memory_limit;  // smallest limit of this process's control groups
  std::string memfd;                    // "" when memfd_create works, else the reason
  std::vector<std::string> features;    // of the processor, those that codecs can use
  std::vector<std::string> nodes;  // NUMA nodes with their processors, "node0: 0-3"; empty: the kernel does not say
};

HostFacts host_facts();
Json to_json(const HostFacts& host);

// The most memory that a job may hope for: what is available, within the control group's limit.
int64_t memory_for_a_job(const HostFacts& host);

// "2.0 MiB", "512 B".
std::string in_words(int64_t bytes);

// Date and time now, UTC, ISO 8601.
std::string utc_now();

}  // namespace echo_comm::tools
