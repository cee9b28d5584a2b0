#include "echo_perf/results.hpp"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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
  return {quantile(samples, 0.50), quantile(samples, 0.90), quantile(samples, 0.99), samples.front(), samples.back()};
}

const char* PathFacts::kind_word() const {
  switch (kind) {
    case ECHO_PATH_FORWARD: return "forward";
    case ECHO_PATH_EXACT: return "exact";
    case ECHO_PATH_CODED: return "coded";
  }
  return "unknown";
}

const char* PathFacts::algorithm_word() const {
  return algorithm == ECHO_ALGORITHM_AUTO ? "none" : algorithm == ECHO_ONE_SHOT ? "one_shot" : "two_shot";
}

double algbw(const Row& row, Place place) {
  const double us = row.places[place].time().p50;
  return us > 0 ? static_cast<double>(row.bytes) / us / 1e3 : 0;
}

double busbw(const Options& options, const Row& row, Place place) {
  const double ways = options.what == ECHO_ALL_REDUCE ? 2 : 1;  // an all-reduce is a reduce-scatter and an all-gather
  return algbw(row, place) * ways * (options.ranks - 1) / options.ranks;
}

Summary::Summary(const std::vector<Row>& rows, const Options& options) {
  for (const Row& row : rows) {
    for (const Place place : {kOutOfPlace, kInPlace}) {
      average_busbw += busbw(options, row, place) / static_cast<double>(kPlaces * rows.size());
      wrong += row.places[place].wrong;
      diverged += row.places[place].diverged;
    }
  }
  if (!options.has(kExact)) return;
  for (auto row = rows.rbegin(); row != rows.rend() && row->places[kOutOfPlace].vs[kExact] >= 1; ++row) {
    break_even = row->bytes;
  }
}

Board::Board(std::size_t most_rows) {
  constexpr std::size_t kPage = 4096;
  const std::size_t head = (sizeof(Head) + kPage - 1) / kPage * kPage;
  bytes_ = head + most_rows * sizeof(Row);
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::system_category(), "memory for the results");
  memory_ = static_cast<std::byte*>(memory);
  head_ = new (memory_) Head{};
  rows_ = reinterpret_cast<Row*>(memory_ + head);
  std::uninitialized_default_construct_n(rows_, most_rows);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) throw std::system_error(errno, std::system_category(), "eventfd");
}

Board::~Board() {
  close(wake_);
  munmap(memory_, bytes_);
}

void Board::add(const Row& row) {
  const std::uint64_t index = head_->rows.load(std::memory_order_relaxed);
  rows_[index] = row;
  head_->rows.store(index + 1, std::memory_order_release);
  eventfd_write(wake_, 1);
}

std::vector<Row> Board::rows() const {
  const std::uint64_t count = head_->rows.load(std::memory_order_acquire);
  return {rows_, rows_ + count};
}

void Board::set_table(const std::string& table) {
  const std::size_t bytes = std::min(table.size(), kMostTable);
  std::copy_n(table.begin(), bytes, head_->table.begin());
  head_->table_bytes.store(bytes, std::memory_order_release);
}

std::string Board::table() const {
  const std::uint64_t bytes = head_->table_bytes.load(std::memory_order_acquire);
  return {head_->table.data(), bytes};
}

void Board::quiet() const {
  eventfd_t count = 0;
  eventfd_read(wake_, &count);
}

}  // namespace echo_comm::tools
