// Ranks that call the public C interface, as threads or as processes, and memory in which they leave their results.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "codec/element.hpp"
#include "echo_comm/echo.h"
#include "testing/processes.hpp"
#include "testing/ranks.hpp"
#include "testing/transports.hpp"

namespace echo_comm::testing {

using CommBody = std::function<void(echo_comm_t comm)>;

// Runs body on every rank of a communicator of its own; the communicator is destroyed when the body ends.
inline void over_comm(Kind kind, int size, const CommBody& body, echo_config_t config = ECHO_CONFIG_INITIALIZER) {
  struct Guard {
    echo_comm_t comm;
    ~Guard() { echo_comm_destroy(comm); }
  };
  if (kind == Kind::kInproc) {
    std::vector<echo_comm_t> comms(static_cast<std::size_t>(size));
    ASSERT_EQ(echo_comm_create_all(size, &config, comms.data()), ECHO_SUCCESS) << echo_last_error();
    spawn_threads(size, [&](int rank, int) {
      const Guard guard{comms[static_cast<std::size_t>(rank)]};
      body(guard.comm);
    });
    return;
  }
  const std::unique_ptr<TemporaryDirectory> directory =
      kind == Kind::kGloo ? std::make_unique<TemporaryDirectory>() : nullptr;
  const std::string base =
      directory ? "gloo+file://" + directory->path() + "?iface=lo&" : "shm://" + unique_name() + "?";
  spawn_processes(size, [&](int rank, int) {
    const std::string url = base + "rank=" + std::to_string(rank) + "&size=" + std::to_string(size);
    Guard guard{nullptr};
    ASSERT_EQ(echo_comm_create(url.c_str(), &config, &guard.comm), ECHO_SUCCESS) << echo_last_error();
    body(guard.comm);
  });
}

// Where the ranks of a test run, and how many.
struct Ranks {
  Kind kind;
  int size;
};

// A test that runs on every one of a list of Ranks; skipped where their transport is not there.
class OnRanks : public ::testing::TestWithParam<Ranks> {
 protected:
  void SetUp() override {
    if (const std::string why = cannot_test(kind()); !why.empty()) GTEST_SKIP() << why;
  }
  [[nodiscard]] static Kind kind() { return GetParam().kind; }
  [[nodiscard]] static int size() { return GetParam().size; }
};

inline std::string name_of_ranks(const ::testing::TestParamInfo<Ranks>& info) {
  return name_of(info.param.kind) + std::to_string(info.param.size);
}

// The same sizes on each of several kinds.
inline std::vector<Ranks> ranks_on(std::initializer_list<Kind> kinds, std::initializer_list<int> sizes) {
  std::vector<Ranks> all;
  for (const Kind kind : kinds) {
    for (const int size : sizes) all.push_back({kind, size});
  }
  return all;
}

inline std::vector<Ranks> operator+(std::vector<Ranks> left, const std::vector<Ranks>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// An array that processes forked after its creation share.
template <typename T>
class SharedArray {
 public:
  explicit SharedArray(std::size_t count) : count_(count) {
    memory_ = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  SharedArray(const SharedArray&) = delete;
  SharedArray& operator=(const SharedArray&) = delete;
  ~SharedArray() { munmap(memory_, bytes()); }

  [[nodiscard]] T* data() const { return static_cast<T*>(memory_); }
  [[nodiscard]] std::size_t size() const { return count_; }
  T& operator[](std::size_t i) const { return data()[i]; }
  [[nodiscard]] std::span<T> part(std::size_t index, std::size_t length) const {
    return {data() + index * length, length};
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(T) + 1; }
  std::size_t count_;
  void* memory_;
};

// Normal values of one rank in one call; the same on every rank that asks.
inline std::vector<float> values_of(int rank, std::size_t count, uint32_t call = 0) {
  std::mt19937 random(1000U * call + static_cast<uint32_t>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

// A tensor of any type in plain bytes.
class Tensor {
 public:
  Tensor(std::span<const float> values, echo_dtype_t dtype) : Tensor(values.size(), dtype) {
    for (std::size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  Tensor(std::size_t count, echo_dtype_t dtype)
      : dtype_(dtype), size_(dtype == ECHO_FLOAT32 ? 4 : 2), bytes_(count * size_) {}

  [[nodiscard]] std::size_t count() const { return bytes_.size() / size_; }
  [[nodiscard]] echo_dtype_t dtype() const { return dtype_; }
  [[nodiscard]] std::byte* data() { return bytes_.data(); }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

  void set(std::size_t i, float x) {
    if (dtype_ == ECHO_FLOAT32) {
      std::memcpy(&bytes_[i * size_], &x, size_);
    } else {
      const uint16_t stored = dtype_ == ECHO_FLOAT16 ? core::float_to_fp16(x) : core::float_to_bf16(x);
      std::memcpy(&bytes_[i * size_], &stored, size_);
    }
  }
  [[nodiscard]] float get(std::size_t i) const {
    if (dtype_ == ECHO_FLOAT32) {
      float x = 0;
      std::memcpy(&x, &bytes_[i * size_], size_);
      return x;
    }
    uint16_t stored = 0;
    std::memcpy(&stored, &bytes_[i * size_], size_);
    return dtype_ == ECHO_FLOAT16 ? core::fp16_to_float(stored) : core::bf16_to_float(stored);
  }

 private:
  echo_dtype_t dtype_;
  std::size_t size_;
  std::vector<std::byte> bytes_;
};

inline echo_result_t all_reduce(Tensor& in, Tensor& out, echo_comm_t comm, echo_feedback_t feedback,
                                const echo_call_t& call) {
  return echo_all_reduce(in.data(), out.data(), in.count(), in.dtype(), comm, feedback, &call);
}

// Exact sum of the values that `size` ranks hold.
inline std::vector<double> exact_sum(int size, std::size_t count, uint32_t call = 0) {
  std::vector<double> sum(count, 0.0);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> values = values_of(rank, count, call);
    for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

}  // namespace echo_comm::testing
