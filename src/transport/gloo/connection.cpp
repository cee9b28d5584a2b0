#include "transport/gloo/connection.hpp"

#include <netinet/in.h>

#include <cstring>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

bool same_token(const unsigned char* a, const unsigned char* b, std::size_t bytes) {
  unsigned char difference = 0;
  for (std::size_t i = 0; i < bytes; ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

sockaddr_storage socket_of(const std::vector<char>& address) {
  sockaddr_storage socket{};
  if (address.size() >= sizeof socket) std::memcpy(&socket, address.data(), sizeof socket);
  return socket;
}

// Gloo's rule: the pair with the greater address connects, the other one accepts.
bool is_less(const std::vector<char>& left, const std::vector<char>& right) {
  const sockaddr_storage own = socket_of(left);
  const sockaddr_storage other = socket_of(right);
  if (own.ss_family == AF_INET) {
    const auto& a = reinterpret_cast<const sockaddr_in&>(own);
    const auto& b = reinterpret_cast<const sockaddr_in&>(other);
    const int order = std::memcmp(&a.sin_addr, &b.sin_addr, sizeof a.sin_addr);
    return order != 0 ? order < 0 : a.sin_port < b.sin_port;
  }
  const auto& a = reinterpret_cast<const sockaddr_in6&>(own);
  const auto& b = reinterpret_cast<const sockaddr_in6&>(other);
  const int order = std::memcmp(&a.sin6_addr, &b.sin6_addr, sizeof a.sin6_addr);
  return order != 0 ? order < 0 : a.sin6_port < b.sin6_port;
}

}  // namespace

// A buffer must be registered before anything for it arrives: Gloo's thread otherwise tries again and again, and holds
// the lock that the registration needs.
void Connection::listen() {
  hello_in_ = {};
  context_.createPair(peer_);
  in_ = receive_into(kHelloBuffer, &hello_in_, sizeof hello_in_);
  out_ = send_from(kHelloBuffer, &hello_out_, sizeof hello_out_);
}

void Connection::connect(const std::vector<char>& peer_address) {
  accepting_ = is_less(address(), peer_address);  // now: a pair that connects gets another address
  pair()->connect(peer_address);
}

// The connecting side shows its token first; only if it is right does the other one show its own. A third hello says
// that the connecting side is ready to receive, as the second one says of the accepting side.
void Connection::say_hello(const Tokens& tokens, int rank, const std::function<void()>& prepare) {
  const auto& own = accepting_ ? tokens.accept : tokens.connect;
  const auto& wanted = accepting_ ? tokens.connect : tokens.accept;
  hello_out_.rank = rank;
  std::memcpy(hello_out_.token, own.data(), own.size());
  const auto send = [&] {
    out_->send(0, sizeof hello_out_);
    out_->waitSend();
  };
  if (!accepting_) send();
  in_->waitRecv();
  require(hello_in_.magic == HelloFrame::kMagic && hello_in_.rank == peer_ &&
              same_token(hello_in_.token, wanted.data(), wanted.size()),
          ErrorCode::kPeer, "somebody who does not know the job's token is at the other end");
  prepare();
  send();
  if (accepting_) in_->waitRecv();
}

// A closed pair wakes those that wait for it only when somebody uses it.
void Connection::give_up() noexcept {
  try {
    if (!pair()) return;
    pair()->close();
    char byte = 0;
    const Buffer wake = send_from(kWakeBuffer, &byte, 1);
    wake->send(0, 1);
  } catch (...) {  // the exception that Gloo throws for a closed pair: its other users get it too
    return;
  }
}

}  // namespace echo_comm::core
