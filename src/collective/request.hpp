// One call of a collective, as it was asked for. Arguments are checked: pointers are valid, aligned and do not overlap
// but in place.
#pragma once

#include <cstdint>
#include <memory>

#include "collective/select.hpp"
#include "feedback/feedback.hpp"
#include "wire/layout.hpp"

namespace echo_comm::core {

struct Request {
  Wish wish;
  Partition partition;
  Dtype dtype = Dtype::kFloat32;
  const void* in = nullptr;  // all-gather: the own part; else the whole tensor
  void* out = nullptr;       // reduce-scatter: the own part; else the whole tensor
  std::shared_ptr<Feedback> feedback = {};
  bool average = false;
  bool flush = false;
  int root = 0;  // broadcast
};

}  // namespace echo_comm::core
