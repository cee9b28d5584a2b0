// Two kinds of input for a collective. Every rank can compute what every other rank brings, and so the result.
//
//   random   normal values; the coded result is near the sum, how near is measured against fp64
//   grid     values whose rotated groups are small codes times a power of two, so that every rounding of the codec is
//            exact and the coded result is known to the bit
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/element.hpp"

namespace echo_comm::tools {

// ---- random ---------------------------------------------------------------------------------------------------------

// Element `index` of rank `rank`: one of 65,536 samples of the standard normal distribution, chosen by a hash.
float random_value(int rank, std::uint64_t index);

// ---- grid -----------------------------------------------------------------------------------------------------------

struct Grid {
  int bits = 4;  // of the codec it is made for
  int ranks = 1;
  echo_op_t op = ECHO_SUM;
  int only = -1;            // the result holds the values of this rank alone, nothing is reduced
  std::uint64_t first = 0;  // number of the tensor's first group, so that parts of a tensor differ

  using Group = std::array<float, ECHO_GROUP>;

  // Group `group` of the tensor that every rank holds, scaled by factor_of(rank). `valid` values, the rest is 0.
  [[nodiscard]] Group group(std::uint64_t group, int valid) const;

  // Ranks hold different powers of two of the same codes, so that a swap or loss of ranks shows. For an average they
  // are equal: then no division rounds.
  [[nodiscard]] float factor_of(int rank) const;
  // What the reduction makes of a value with factor 1, before it is rounded to the element type.
  [[nodiscard]] float reduced(float value) const;
};

// ---- whole tensors --------------------------------------------------------------------------------------------------

// Fills a tensor with what `rank` brings.
void fill_random(void* tensor, std::size_t count, echo_dtype_t dtype, int rank);
void fill_grid(void* tensor, std::size_t count, echo_dtype_t dtype, int rank, const Grid& grid);

// Elements of a result that are not what the grid makes predictable.
std::uint64_t count_wrong(const void* result, std::size_t count, echo_dtype_t dtype, const Grid& grid);

// Squared error against the fp64 result, and squared fp64 result, of elements [begin, end).
struct SquaredError {
  double error = 0;
  double reference = 0;

  // Relative L2 error; 0 when nothing was compared.
  [[nodiscard]] double relative() const;
};
// Ranks whose values the result holds: a sum or average of all, or those of one.
struct Summands {
  int first = 0;
  int ranks = 1;
  echo_op_t op = ECHO_SUM;
};
SquaredError random_error(const void* result, std::size_t begin, std::size_t end, echo_dtype_t dtype,
                          const Summands& summands);

}  // namespace echo_comm::tools
