// Fills the table of a communicator by measuring: for each size the exact path and the coded one, with the algorithms
// that make sense for this number of ranks, interleaved; then the segment size and depth of the largest tensor.
//
// Rank 0 leads: it says what to measure next (by a broadcast) as long as its budget lasts, takes its own times, decides,
// and sends the table to all. So the ranks can neither disagree nor get out of step.
#pragma once

#include <chrono>

#include "collective/communicator.hpp"

namespace echo_comm::core {

// Collective. Uses the communicator's calls, so it counts some.
Table measure_table(Communicator& communicator, std::chrono::milliseconds budget);

// Rank 0's text on all ranks.
std::string share_text(Communicator& communicator, const std::string& own);

}  // namespace echo_comm::core
