#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "common/network.hpp"
#include "echo_perf/rival.hpp"

namespace echo_comm::tools {
namespace {

class Socket {
 public:
  explicit Socket(int number = -1) : number_(number) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { reset(-1); }

  void reset(int number) {
    if (number_ >= 0) close(number_);
    number_ = number;
  }
  [[nodiscard]] int get() const { return number_; }

 private:
  int number_;
};

void require(bool ok, const char* what) {
  if (!ok) throw std::system_error(errno, std::system_category(), std::string("baseline stream: ") + what);
}

SocketAddress address_of(const std::string& interface) {
  for (const Interface& one : interfaces()) {
    if (one.name == interface && one.address) return *one.address;  // port 0: any
  }
  throw std::runtime_error("baseline stream: interface '" + interface + "' is not there or has no address");
}

class StreamRival final : public Rival {
 public:
  StreamRival(const Exchange& exchange, const RivalSettings& settings)
      : rank_(exchange.rank()), bytes_of_a_piece_(kPiece) {
    SocketAddress own = address_of(settings.interface);
    if (rank_ == kReceiver) open_at(listener_, own, settings.timeout);
    if (rank_ == kReceiver) {
      require(listen(listener_.get(), 1) == 0, "listen");
      require(getsockname(listener_.get(), own.get(), &own.length) == 0, "getsockname");
    }
    SocketAddress receiver = exchange.gather(own)[kReceiver];
    if (rank_ == kSender) {
      open_at(stream_, own, settings.timeout);
      require(connect(stream_.get(), receiver.get(), receiver.length) == 0, "connect");
    } else if (rank_ == kReceiver) {
      stream_.reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      require(stream_.get() >= 0, "accept");
      set_options(stream_, settings.timeout);
    }
  }

  void begin(std::uint64_t /*count*/, std::uint64_t exact_bytes) override { bytes_ = exact_bytes; }
  void prepare(Place /*place*/) override {}

  void call() override {
    if (rank_ != kSender && rank_ != kReceiver) return;
    for (std::uint64_t left = bytes_; left > 0;) {
      const std::size_t most = std::min<std::uint64_t>(left, bytes_of_a_piece_.size());
      char* piece = bytes_of_a_piece_.data();
      const ssize_t moved =
          rank_ == kSender ? send(stream_.get(), piece, most, MSG_NOSIGNAL) : recv(stream_.get(), piece, most, 0);
      if (moved < 0 && errno == EINTR) continue;
      if (moved == 0) throw std::runtime_error("baseline stream: the other rank has closed the connection");
      require(moved > 0, rank_ == kSender ? "send" : "recv");
      left -= static_cast<std::uint64_t>(moved);
    }
  }

 private:
  static constexpr int kSender = 0;
  static constexpr int kReceiver = 1;
  static constexpr std::size_t kPiece = 1 << 20;

  static void open_at(Socket& socket_, const SocketAddress& address, std::chrono::milliseconds timeout) {
    socket_.reset(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    require(socket_.get() >= 0, "socket");
    set_options(socket_, timeout);
    require(bind(socket_.get(), address.get(), address.length) == 0, "bind");
  }

  // No call waits longer than a call of Echo would.
  static void set_options(const Socket& socket_, std::chrono::milliseconds timeout) {
    const timeval limit{timeout.count() / 1000, static_cast<suseconds_t>(timeout.count() % 1000 * 1000)};
    const int on = 1;
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  int rank_;
  Socket listener_;
  Socket stream_;
  std::vector<char> bytes_of_a_piece_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<Rival> make_stream_rival(const Exchange& exchange, const RivalSettings& settings) {
  return std::make_unique<StreamRival>(exchange, settings);
}

}  // namespace echo_comm::tools
