// Room collective: who sends what to whom, in which order. One file per algorithm, readable from top to bottom.
//
// A Communicator is one rank's end of a group: a transport, the settings all ranks share, the number of the next call
// and the counters. One thread at a time makes calls; abort() may come from any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/deadline.hpp"
#include "base/workers.hpp"
#include "codec/codec.hpp"
#include "collective/select.hpp"
#include "feedback/feedback.hpp"
#include "transport/transport.hpp"
#include "wire/header.hpp"

namespace echo_comm::core {

struct Settings {
  std::chrono::milliseconds timeout{30'000};
  bool batch_invariant = false;
  int threads = 1;  // of this rank
};

struct CallOptions {
  Format format;
  bool average = false;
  bool flush = false;
  Algorithm algorithm = Algorithm::kAuto;
  int64_t row_length = 0;
};

struct Counters {
  uint64_t coded_calls = 0;
  uint64_t exact_calls = 0;
  uint64_t passed_calls = 0;
  uint64_t one_shot_calls = 0;
  uint64_t flush_calls = 0;
  uint64_t logical_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t messages = 0;
  uint64_t poisoned_groups = 0;
};

class Communicator {
 public:
  Communicator(std::unique_ptr<Transport> transport, Settings settings)
      : transport_(std::move(transport)), settings_(settings), workers_(std::make_unique<Workers>(settings.threads)) {}

  [[nodiscard]] int rank() const { return transport_->rank(); }
  [[nodiscard]] int size() const { return transport_->size(); }
  [[nodiscard]] const Transport& transport() const { return *transport_; }
  [[nodiscard]] int threads() const { return workers_->threads(); }
  [[nodiscard]] const Counters& counters() const { return counters_; }

  // As echo_all_reduce; pointers are valid, aligned and do not overlap but for in == out.
  void all_reduce(const void* in, void* out, int64_t count, Dtype dtype, Feedback* feedback,
                  const CallOptions& options);

  void abort(const std::string& reason) noexcept;

 private:
  std::unique_ptr<Transport> transport_;
  Settings settings_;
  uint64_t sequence_ = 1;  // of the next call; the transport shows 0 for a rank that made none yet
  Counters counters_;
  std::unique_ptr<Workers> workers_;
};

// One call on its way through an algorithm.
struct Call {
  Transport& transport;
  const Codec& codec;
  GroupLayout layout;
  Format format;
  Dtype dtype;
  const void* in;
  void* out;
  Residuals residuals;
  MessageHeader header;  // of shot 1 from this rank; send and receive fill in shot and rank
  bool batch_invariant;
  int divisor;  // 1 for a sum, size for an average
  int64_t segment_groups;
  Deadline deadline;
  Counters& counters;

  [[nodiscard]] Block block(GroupRange range) const { return {layout, range, format, dtype}; }

  // Acquires a message for the range, writes its header, lets `fill` write the payload, commits it.
  // Returns the payload, which stays readable as the transport says.
  template <typename Fill>
  const std::byte* send(int to, uint8_t shot, GroupRange range, const Fill& fill) {
    const int64_t bytes = kHeaderBytes + block(range).encoded_bytes();
    const std::span<std::byte> message = transport.acquire(to, deadline);
    MessageHeader own = header;
    own.shot = shot;
    write_header(message, own);
    std::byte* payload = message.data() + kHeaderBytes;
    fill(payload);
    transport.commit(to, static_cast<std::size_t>(bytes));
    const int readers = to == kEveryone ? transport.size() - 1 : 1;
    counters.payload_bytes += static_cast<uint64_t>(bytes) * readers;
    counters.messages += readers;
    return payload;
  }

  // Payload of the next message from `from`, checked against what this call expects; valid until release.
  const std::byte* receive(int from, Route route, uint8_t shot, GroupRange range);

  // The same for the first message of this call from `from`. A peer in another call or algorithm may use the other route
  // for it. Nothing of an earlier call can be pending, and a peer that is already in its next call has sent this call's
  // message before: so a message on the other route alone is a mismatch.
  const std::byte* receive_first(int from, Route route, uint8_t shot, GroupRange range);
};

// The algorithms. Each throws on failure; the communicator then fails for all ranks.
void one_shot(Call& call);
void two_shot(Call& call);

}  // namespace echo_comm::core
