// What one rank knows, told to all over the communicator itself: so ranks may be threads, processes or hosts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "echo_comm/echo.hpp"

namespace echo_comm::tools {

class Exchange {
 public:
  explicit Exchange(echo_comm_t comm) : comm_(comm), rank_(echo_comm_rank(comm)), size_(echo_comm_size(comm)) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Returns when all ranks are here. Fails when one of them is gone.
  void barrier() const { check(echo_barrier(comm_)); }

  // The parts of all ranks in rank order, bit for bit; all bring the same number.
  template <class T>
  [[nodiscard]] std::vector<T> gather(std::span<const T> own) const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 4 == 0);
    std::vector<T> all(own.size() * static_cast<std::size_t>(size_));
    for (int root = 0; root < size_; ++root) {
      T* part = all.data() + own.size() * static_cast<std::size_t>(root);
      if (root == rank_) std::copy(own.begin(), own.end(), part);
      check(echo_broadcast(part, part, own.size() * (sizeof(T) / 4), ECHO_FLOAT32, root, comm_));
    }
    return all;
  }
  template <class T>
  [[nodiscard]] std::vector<T> gather(const T& own) const {
    return gather(std::span<const T>(&own, 1));
  }

  // Texts of any length.
  [[nodiscard]] std::vector<std::string> gather_text(const std::string& own) const;

 private:
  echo_comm_t comm_;
  int rank_;
  int size_;
};

}  // namespace echo_comm::tools
