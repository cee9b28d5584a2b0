// What joins this rank to one peer: two connections with registered buffers, and the thread that handles what arrives.
//
// Gloo's own waits can neither end early nor watch two peers: a time-out breaks the pair. So one thread per peer waits
// in Gloo, without a limit, and writes what it learns into this rank's region, where the rank waits as it does under
// shm. Closing the pair ends the thread.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "transport/gloo/connection.hpp"
#include "transport/gloo/frame.hpp"
#include "transport/mailbox/mapping.hpp"

namespace echo_comm::core {

class Mesh;

class Link {
 public:
  enum class State : int {
    kIdle,        // the peer's address is not known yet
    kConnecting,  // Gloo connects
    kHello,       // connected to somebody who has not proved to be the peer
    kUp,
    kDead,
  };

  Link(Mesh& mesh, int peer);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] State state() const noexcept { return state_.load(std::memory_order_seq_cst); }
  [[nodiscard]] bool dead() const noexcept { return state() == State::kDead; }
  [[nodiscard]] bool was_up() const noexcept { return was_up_.load(std::memory_order_seq_cst); }
  [[nodiscard]] bool ready() const noexcept { return ready_.load(std::memory_order_seq_cst); }
  [[nodiscard]] bool gone() const noexcept { return leave_seen_.load(std::memory_order_seq_cst) || dead(); }
  [[nodiscard]] bool go() const noexcept { return go_.load(std::memory_order_seq_cst); }
  // Why it is dead.
  [[nodiscard]] std::string why() const;

  // Listens; then the address that the peer needs: that of both connections, one behind the other.
  void listen();
  [[nodiscard]] std::vector<char> address() const;
  // Starts to connect to the peer, which listens at `address`.
  void start(std::vector<char> address);
  // A connection whose other side does not say hello in time is given up, and made anew.
  void look_at_time();

  // The rest from kUp on. What is sent to a dead link is lost; the rank hears of the death when it waits.
  void send(FrameKind kind) noexcept { post({.kind = kind}, {}, nullptr); }
  // A failure that began at rank `origin`.
  void send_failure(int origin, uint8_t code, std::string_view text) noexcept;
  void send_message(Route route, uint64_t message, std::size_t bytes) noexcept;
  // The rank released a message of the peer.
  void released(Route route) noexcept;
  // Asks the peer which call it is in, unless the last question is still open.
  void query() noexcept;

  // Ends the connection and its thread.
  void close() noexcept;

 private:
  // What is registered with Gloo, and goes before the pairs do.
  struct Buffers {
    Connection::Buffer warm_in, warm_out, frames_in, frames_out;
    std::array<Connection::Buffer, 2> messages_in, messages_out;  // by route
  };

  void run();
  void connect();
  bool try_connect(std::string& failure);
  void open(Connection& connection, const std::vector<char>& address);
  void register_buffers(Connection& connection);
  void require_open() const;  // with life_ held
  void warm_up();
  void listen_again(int attempt);
  void give_up_connections() noexcept;
  void die(const std::string& why) noexcept;

  void handle_frames();
  [[nodiscard]] bool complete(uint64_t number) const;
  void handle(uint64_t number);
  void take_counts(const FrameHeader& header);
  void take_message(Route route, const FrameHeader& header, const std::byte* payload);
  void take_failure(const FrameHeader& header, const std::byte* payload);

  void post(FrameHeader header, std::span<const std::byte> payload, const std::byte* long_payload) noexcept;
  void post_locked(FrameHeader header, std::span<const std::byte> payload, const std::byte* long_payload);
  [[nodiscard]] uint64_t uncredited(Route route) const noexcept;

  Mesh& mesh_;
  const int peer_;
  // The first one carries frames from the lower rank to the higher one.
  std::array<Connection, 2> connections_;
  Connection& out_;
  Connection& in_;
  Mapping ring_;  // kRing entries to receive, kRing to send
  std::vector<char> peer_address_;
  std::thread thread_;

  std::atomic<State> state_{State::kIdle};
  std::atomic<bool> was_up_{false};
  std::atomic<bool> ready_{false};
  std::atomic<bool> go_{false};
  std::atomic<bool> leave_seen_{false};
  std::atomic<bool> asked_{false};
  std::atomic<int64_t> hello_since_{0};
  std::atomic<uint64_t> sent_{0};                    // frames
  std::atomic<uint64_t> handled_{0};                 // frames of the peer
  std::atomic<uint64_t> acknowledged_{0};            // frames of this rank that the peer handled
  std::array<std::atomic<uint64_t>, 2> credited_{};  // messages of the peer that it knows to be released, by route

  mutable std::mutex life_;  // protects pair and buffers against close(), and why_
  bool closing_ = false;
  std::string why_;
  Buffers buffers_;
  Mapping warm_;  // to receive, to send

  std::mutex sending_;                                   // one frame at a time, in the order of their numbers
  std::array<std::array<bool, kSlots>, 2> slot_sent_{};  // Gloo has a completion for us, by route and slot
};

}  // namespace echo_comm::core
