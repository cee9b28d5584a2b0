#include "transport/gloo/endpoint.hpp"

#include <new>
#include <utility>

namespace echo_comm::core {

GlooTransport::GlooTransport(std::shared_ptr<Mesh> mesh)
    : mesh_(std::move(mesh)), mailbox_(std::make_unique<Mailbox>(mesh_->region(), mesh_->rank(), "gloo", mesh_)) {}

GlooTransport::~GlooTransport() {
  if (fork_guard_.in_child()) {
    // The rank lives on in the parent. Its threads do not exist here, and what they held locked stays locked: nothing
    // of Gloo's may be touched.
    static_cast<void>(mailbox_.release());
    static_cast<void>(new (std::nothrow) std::shared_ptr<Mesh>(std::move(mesh_)));
    return;
  }
  mesh_->leave();
  mesh_->close();
}

template <typename Act>
auto GlooTransport::telling(const Act& act) {
  try {
    return act();
  } catch (...) {
    if (!fork_guard_.in_child()) mesh_->tell_failure();
    throw;
  }
}

std::span<std::byte> GlooTransport::acquire(int to, const Deadline& deadline) {
  return telling([&] { return mailbox_->acquire(to, deadline); });
}

void GlooTransport::commit(int to, std::size_t bytes) {
  mailbox_->commit(to, bytes);
  const uint64_t message = mesh_->region().produced(rank(), to).count.load(std::memory_order_relaxed) - 1;
  if (to != kEveryone) return mesh_->link(to).send_message(Route::kPair, message, bytes);
  // Peers starting behind this rank, so that not all ranks send to rank 0 first.
  for (int distance = 1; distance < size(); ++distance) {
    mesh_->link((rank() + distance) % size()).send_message(Route::kEveryone, message, bytes);
  }
}

Route GlooTransport::arrival(int from, Route preferred, const Deadline& deadline) {
  return telling([&] { return mailbox_->arrival(from, preferred, deadline); });
}

std::span<const std::byte> GlooTransport::receive(int from, Route route, const Deadline& deadline) {
  return telling([&] { return mailbox_->receive(from, route, deadline); });
}

void GlooTransport::release(int from, Route route) {
  mailbox_->release(from, route);
  mesh_->link(from).released(route);
}

void GlooTransport::fail(const Error& error) noexcept {
  if (fork_guard_.in_child()) return;
  mailbox_->fail(error);
  mesh_->tell_failure();
}

}  // namespace echo_comm::core
