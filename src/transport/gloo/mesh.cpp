#include "transport/gloo/mesh.hpp"

#include <gloo/transport/tcp/device.h>
#include <signal.h>

#include <cstring>

namespace echo_comm::core {
namespace {

// Longest wait for the others to see a goodbye: only a rank that is stopped or cut off makes it last.
constexpr std::chrono::milliseconds kGoodbye{1000};

std::shared_ptr<gloo::transport::Device> open_device(const NetAddress& address) {
  gloo::transport::tcp::attr attributes;
  attributes.ai_family = address.family();
  attributes.ai_socktype = SOCK_STREAM;
  attributes.ai_protocol = 0;
  attributes.ai_addr = address.socket;
  attributes.ai_addrlen = static_cast<int>(address.length);
  return std::make_shared<gloo::transport::tcp::Device>(attributes);
}

}  // namespace

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

Mesh::Mesh(Region region, int rank, const NetAddress& address, const Tokens& tokens, Store& store)
    : region_(region),
      memory_(Mapping::anonymous(region.bytes())),
      rank_(rank),
      address_(address),
      tokens_(tokens),
      store_(store),
      links_(static_cast<std::size_t>(region.size())) {
  region_.format(memory_.bytes());
  region_.announce(rank);
  // Gloo's thread writes to sockets without MSG_NOSIGNAL, and must not run the program's signal handlers either.
  const SignalsBlocked blocked;
  try {
    device_ = open_device(address);
    for (auto& context : contexts_) {
      context = device_->createContext(rank, size());
      context->setTimeout(std::chrono::milliseconds(0));  // none: see link.hpp
    }
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank) continue;
      auto& link = links_[static_cast<std::size_t>(peer)];
      link = std::make_unique<Link>(*this, peer);
      link->listen();
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kSystem, "gloo: cannot listen on ", address.text(), ": ", error.what());
  }
}

Mesh::~Mesh() { close(); }

std::size_t Mesh::registered_bytes() const {
  const auto peers = static_cast<std::size_t>(size() - 1);
  const std::size_t slots = kSlots * (3 * peers + 1);
  return slots * static_cast<std::size_t>(region_.slot_bytes()) + peers * 2 * kRing * kFrameBytes;
}

void Mesh::changed() noexcept {
  region_.control(rank_).doorbell.ring();
  const std::lock_guard lock(mutex_);
  ++changes_;
  condition_.notify_all();
}

void Mesh::wait_for_change(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  const uint64_t before = changes_;
  condition_.wait_for(lock, at_most, [&] { return changes_ != before; });
}

// The mailbox asks now and then while its rank waits: a good moment to find out where the peer is.
bool Mesh::died(int peer) const noexcept {
  Link& asked = link(peer);
  if (asked.dead()) return true;
  asked.query();
  return false;
}

void Mesh::tell_failure() noexcept {
  const FailureRecord& record = region_.header().failure;
  if (record.published() && record.rank == rank_) pass_failure_on();
}

void Mesh::pass_failure_on() noexcept {
  const FailureRecord& record = region_.header().failure;
  if (!record.published() || failure_told_.exchange(true)) return;
  const std::string_view what(record.text, record.length);
  for_each([&](Link& link) { link.send_failure(record.rank, static_cast<uint8_t>(record.code), what); });
}

void Mesh::leave() noexcept {
  pass_failure_on();  // else somebody may see this rank leave before the failing rank's word reaches it
  for_each([](Link& link) { link.send(FrameKind::kLeave); });
  const Deadline deadline = Deadline::in(kGoodbye);
  for (;;) {
    bool seen = true;
    for_each([&](Link& link) { seen = seen && (link.gone() || link.state() != Link::State::kUp); });
    if (seen || deadline.passed()) return;
    wait_for_change(std::chrono::milliseconds(20));
  }
}

void Mesh::close() noexcept {
  for_each([](Link& link) { link.close(); });
}

}  // namespace echo_comm::core
