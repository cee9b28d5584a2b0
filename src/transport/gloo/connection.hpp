// One Gloo pair to a peer, from listening to the exchange of hellos.
//
// Two of them join two ranks, one for each direction of frames. With a single one, Gloo's thread could not handle what
// arrives while this rank sends, and asks again and again meanwhile; and a peer's last words would be lost when it
// closes the connection with something unread in it.
#pragma once

#include <gloo/transport/buffer.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>

#include <functional>
#include <memory>
#include <vector>

#include "transport/gloo/frame.hpp"
#include "transport/gloo/job.hpp"

namespace echo_comm::core {

class Connection {
 public:
  using Buffer = std::unique_ptr<gloo::transport::Buffer>;

  Connection(gloo::transport::Context& context, int peer) : context_(context), peer_(peer) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Listens, at a new address each time; then the address that the peer needs.
  void listen();
  [[nodiscard]] std::vector<char> address() const { return pair()->address().bytes(); }

  // Connects to the peer, which listens at `address`. Waits until somebody is at the other end.
  void connect(const std::vector<char>& address);
  // Shows that this is `rank`, and makes sure that the other end is the peer; throws kPeer when it is somebody else.
  // `prepare` registers the buffers of what follows, before the peer may send it.
  void say_hello(const Tokens& tokens, int rank, const std::function<void()>& prepare);

  Buffer receive_into(int number, void* bytes, std::size_t size) {
    return pair()->createRecvBuffer(number, bytes, size);
  }
  Buffer send_from(int number, void* bytes, std::size_t size) { return pair()->createSendBuffer(number, bytes, size); }

  // Closes the pair, and wakes those that wait for it.
  void give_up() noexcept;
  // Lets go of the hello's buffers, which must go before the pair does.
  void forget_hello() { in_.reset(), out_.reset(); }

 private:
  [[nodiscard]] std::unique_ptr<gloo::transport::Pair>& pair() const { return context_.getPair(peer_); }

  gloo::transport::Context& context_;
  const int peer_;
  bool accepting_ = false;
  HelloFrame hello_in_, hello_out_;
  Buffer in_, out_;
};

}  // namespace echo_comm::core
