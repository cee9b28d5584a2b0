#include "common/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace echo_comm::tools {
namespace {

// A counter made random (the finalizer of splitmix64).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

const std::vector<float>& normal_samples() {
  static const std::vector<float> samples = [] {
    std::mt19937_64 random(1);  // NOLINT: the same numbers on every rank and in every run
    std::normal_distribution<float> normal;
    std::vector<float> values(1 << 16);
    for (float& value : values) value = normal(random);
    return values;
  }();
  return samples;
}

// The orthonormal Walsh-Hadamard matrix, its own inverse.
void rotate(Grid::Group& v) {
  for (float& x : v) x *= 0.125F;
  for (std::size_t stride = 1; stride < v.size(); stride *= 2) {
    for (std::size_t i = 0; i < v.size(); ++i) {
      if ((i & stride) != 0) continue;
      const float a = v[i];
      const float b = v[i + stride];
      v[i] = a + b;
      v[i + stride] = a - b;
    }
  }
}

// Calls body(group, first element, valid elements) for each group of a tensor of one row.
template <class Body>
void for_each_group(std::size_t count, Body&& body) {
  for (std::size_t first = 0; first < count; first += ECHO_GROUP) {
    body(first / ECHO_GROUP, first, static_cast<int>(std::min<std::size_t>(ECHO_GROUP, count - first)));
  }
}

}  // namespace

float random_value(int rank, std::uint64_t index) {
  static const std::vector<float>& samples = normal_samples();
  return samples[mix(index ^ (static_cast<std::uint64_t>(rank) << 48)) & 0xFFFFU];
}

// The codec gives the largest magnitude the lowest code, so exactly one code of a full group is the lowest, and the
// scale becomes `unit`. The magnitudes of a group's codes sum up to at most 256: its values before the rotation, sums
// of +-codes over 8, then fit the 8 significant bits of a bfloat16.
Grid::Group Grid::group(std::uint64_t group, int valid) const {
  Group values{};
  std::uint64_t random = mix(group);
  if (random % 29 == 0) return values;  // a zero group now and then
  const auto take = [&random](std::uint64_t below) {
    random = mix(random);
    return static_cast<int>(random % below);
  };
  const float unit = std::ldexp(take(2) == 0 ? 1.0F : -1.0F, take(5) - 2);
  if (valid < ECHO_GROUP) {
    values[0] = 8.0F * unit;  // rotated: equal values everywhere, all get the lowest code
    return values;
  }
  const int lowest = -(1 << (bits - 1));
  const int largest = std::min(-lowest - 1, 40);
  int budget = 256 + lowest;
  const int extremum = take(ECHO_GROUP);
  const int start = take(ECHO_GROUP);
  for (int i = 0; i < ECHO_GROUP; ++i) {
    const int at = (start + 27 * i) % ECHO_GROUP;
    int code = std::clamp(take(2 * largest + 1) - largest, -budget, budget);
    if (at == extremum)
      code = lowest;
    else
      budget -= std::abs(code);
    values[static_cast<std::size_t>(at)] = static_cast<float>(code) * unit;
  }
  rotate(values);
  return values;
}

float Grid::factor_of(int rank) const { return op == ECHO_AVG ? 1.0F : static_cast<float>(1 << (rank % 3)); }

float Grid::reduced(float value) const {
  if (only >= 0) return value * factor_of(only);
  if (op == ECHO_AVG) return value;
  float factors = 0;
  for (int rank = 0; rank < ranks; ++rank) factors += factor_of(rank);
  return value * factors;
}

void fill_random(void* tensor, std::size_t count, echo_dtype_t dtype, int rank) {
  with_element(dtype, [&]<class E>(E) {
    auto* values = static_cast<typename E::Stored*>(tensor);
    for (std::size_t i = 0; i < count; ++i) values[i] = E::store(random_value(rank, i));
  });
}

void fill_grid(void* tensor, std::size_t count, echo_dtype_t dtype, int rank, const Grid& grid) {
  const float factor = grid.factor_of(rank);
  with_element(dtype, [&]<class E>(E) {
    auto* values = static_cast<typename E::Stored*>(tensor);
    for_each_group(count, [&](std::uint64_t group, std::size_t first, int valid) {
      const Grid::Group given = grid.group(grid.first + group, valid);
      for (int i = 0; i < valid; ++i) values[first + i] = E::store(given[i] * factor);
    });
  });
}

std::uint64_t count_wrong(const void* result, std::size_t count, echo_dtype_t dtype, const Grid& grid) {
  std::uint64_t wrong = 0;
  with_element(dtype, [&]<class E>(E) {
    const auto* values = static_cast<const typename E::Stored*>(result);
    for_each_group(count, [&](std::uint64_t group, std::size_t first, int valid) {
      const Grid::Group given = grid.group(grid.first + group, valid);
      for (int i = 0; i < valid; ++i) {
        const float expected = E::load(E::store(grid.reduced(given[i])));
        wrong += E::load(values[first + i]) == expected ? 0 : 1;  // +0 equals -0, a NaN is wrong
      }
    });
  });
  return wrong;
}

double SquaredError::relative() const { return reference > 0 ? std::sqrt(error / reference) : 0; }

SquaredError random_error(const void* result, std::size_t begin, std::size_t end, echo_dtype_t dtype,
                          const Summands& summands) {
  SquaredError sum;
  const double divisor = summands.op == ECHO_AVG ? summands.ranks : 1;
  with_element(dtype, [&]<class E>(E) {
    const auto* values = static_cast<const typename E::Stored*>(result);
    for (std::size_t i = begin; i < end; ++i) {
      double reference = 0;
      for (int rank = summands.first; rank < summands.first + summands.ranks; ++rank) {
        reference += static_cast<double>(E::load(E::store(random_value(rank, i))));
      }
      reference /= divisor;
      const double error = static_cast<double>(E::load(values[i])) - reference;
      sum.error += error * error;
      sum.reference += reference * reference;
    }
  });
  return sum;
}

}  // namespace echo_comm::tools
