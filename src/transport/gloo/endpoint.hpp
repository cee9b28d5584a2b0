// The transport: a mailbox on this rank's own region, and the mesh that carries what the mailbox writes to the peers.
#pragma once

#include <memory>

#include "transport/gloo/mesh.hpp"

namespace echo_comm::core {

class GlooTransport final : public Transport {
 public:
  // All links are up.
  explicit GlooTransport(std::shared_ptr<Mesh> mesh);
  ~GlooTransport() override;

  [[nodiscard]] int rank() const noexcept override { return mesh_->rank(); }
  [[nodiscard]] int size() const noexcept override { return mesh_->size(); }
  [[nodiscard]] const char* name() const noexcept override { return "gloo"; }
  [[nodiscard]] std::size_t max_message() const noexcept override { return mailbox_->max_message(); }
  [[nodiscard]] std::size_t shared_bytes() const noexcept override { return mesh_->registered_bytes(); }
  [[nodiscard]] bool is_network() const noexcept override { return true; }
  [[nodiscard]] std::string address() const override { return mesh_->address().text(); }

  void begin_call(uint64_t sequence) noexcept override { mailbox_->begin_call(sequence); }
  std::span<std::byte> acquire(int to, const Deadline& deadline) override;
  void commit(int to, std::size_t bytes) override;
  Route arrival(int from, Route preferred, const Deadline& deadline) override;
  std::span<const std::byte> receive(int from, Route route, const Deadline& deadline) override;
  void release(int from, Route route) override;
  void fail(const Error& error) noexcept override;
  void check() const override { mailbox_->check(); }
  [[nodiscard]] WaitStats wait_stats() const noexcept override { return mailbox_->wait_stats(); }

 private:
  // A wait that ends in an error has recorded it; the peers must hear of it.
  template <typename Act>
  auto telling(const Act& act);

  ForkGuard fork_guard_;
  std::shared_ptr<Mesh> mesh_;
  std::unique_ptr<Mailbox> mailbox_;
};

}  // namespace echo_comm::core
