#include "echo_perf/results.hpp"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>
#include <new>
#include <system_error>

namespace echo_comm::tools {
namespace {

// Between the two nearest of the sorted samples.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Times times_of(std::vector<double>& samples) {
  std::ranges::sort(samples);
  return {quantile(samples, 0.50), quantile(samples, 0.95), quantile(samples, 0.99), samples.front(), samples.back()};
}

double algbw(const Row& row, Place place) {
  const double us = row.places[place].time.p50;
  return us > 0 ? static_cast<double>(row.bytes) / us / 1e3 : 0;
}

double busbw(const Row& row, Place place, int ranks) { return algbw(row, place) * 2 * (ranks - 1) / ranks; }

Summary::Summary(const std::vector<Row>& rows, const Options& options) {
  for (const Row& row : rows) {
    for (const Place place : {kOutOfPlace, kInPlace}) {
      average_busbw += busbw(row, place, options.ranks) / static_cast<double>(kPlaces * rows.size());
      wrong += row.places[place].wrong;
      diverged += row.places[place].diverged;
    }
  }
  for (auto row = rows.rbegin(); row != rows.rend() && row->places[kOutOfPlace].ratio() >= 1; ++row) {
    break_even = row->bytes;
  }
}

SharedResults::SharedResults(const Options& options) : ranks_(options.ranks), iters_(options.iters) {
  const auto ranks = static_cast<std::size_t>(ranks_);
  const auto place = [this](std::size_t bytes) {
    const std::size_t at = bytes_;
    bytes_ += (bytes + 4095) / 4096 * 4096;
    return at;
  };
  const std::size_t head = place(sizeof(Head));
  const std::size_t rows = place(options.sizes.size() * sizeof(Row));
  const std::size_t shares = place(ranks * sizeof(Share));
  const std::size_t times = place(kContenders * ranks * static_cast<std::size_t>(iters_) * sizeof(double));
  const std::size_t windows = place(ranks * kWindow);

  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::system_category(), "memory for the results");
  memory_ = static_cast<std::byte*>(memory);
  head_ = new (memory_ + head) Head{};
  rows_ = reinterpret_cast<Row*>(memory_ + rows);
  std::uninitialized_default_construct_n(rows_, options.sizes.size());
  shares_ = reinterpret_cast<Share*>(memory_ + shares);
  std::uninitialized_value_construct_n(shares_, ranks);
  times_ = reinterpret_cast<double*>(memory_ + times);  // zero, as the kernel gives it
  windows_ = memory_ + windows;
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) throw std::system_error(errno, std::system_category(), "eventfd");
}

SharedResults::~SharedResults() {
  close(wake_);
  munmap(memory_, bytes_);
}

SharedResults::Share& SharedResults::share(int rank) const { return shares_[rank]; }

double& SharedResults::time(Contender contender, int rank, int iteration) const {
  return times_[(static_cast<std::size_t>(contender) * static_cast<std::size_t>(ranks_) +
                 static_cast<std::size_t>(rank)) *
                    static_cast<std::size_t>(iters_) +
                static_cast<std::size_t>(iteration)];
}

std::byte* SharedResults::window(int rank) const { return windows_ + static_cast<std::size_t>(rank) * kWindow; }

void SharedResults::add(const Row& row) {
  const std::uint64_t index = head_->rows.load(std::memory_order_relaxed);
  rows_[index] = row;
  head_->rows.store(index + 1, std::memory_order_release);
  eventfd_write(wake_, 1);
}

std::vector<Row> SharedResults::rows() const {
  const std::uint64_t count = head_->rows.load(std::memory_order_acquire);
  return {rows_, rows_ + count};
}

void SharedResults::quiet() const {
  eventfd_t count = 0;
  eventfd_read(wake_, &count);
}

}  // namespace echo_comm::tools
