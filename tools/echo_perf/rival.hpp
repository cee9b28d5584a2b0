// Baselines that are not Echo. They meet over Echo's communicator and then move their bytes by themselves.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/exchange.hpp"
#include "echo_perf/results.hpp"

namespace echo_comm::tools {

class Rival {
 public:
  Rival() = default;
  Rival(const Rival&) = delete;
  Rival& operator=(const Rival&) = delete;
  virtual ~Rival() = default;

  // A new size: `count` elements, of which Echo's exact path makes `exact_bytes` that rank 0 sends.
  virtual void begin(std::uint64_t count, std::uint64_t exact_bytes) = 0;
  // Before the clock runs.
  virtual void prepare(Place place) = 0;
  virtual void call() = 0;
};

struct RivalSettings {
  std::string interface;  // whose address is used
  std::chrono::milliseconds timeout{0};
  std::uint64_t most_elements = 0;
};

// "" or why this build has no Gloo, and what to do about it.
std::string gloo_rival_missing();

// gloo::allreduce, ring, of fp32 values over TCP. All ranks make theirs at the same time.
std::unique_ptr<Rival> make_gloo_rival(const Exchange& exchange, const RivalSettings& settings);

// One plain TCP stream from rank 0 to rank 1 of as many bytes as the exact path sends one way.
std::unique_ptr<Rival> make_stream_rival(const Exchange& exchange, const RivalSettings& settings);

}  // namespace echo_comm::tools
