// One rank's connections to all others, and the region that they keep up to date. As Backing of the mailbox it tells
// who died.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "transport/gloo/address.hpp"
#include "transport/gloo/job.hpp"
#include "transport/gloo/link.hpp"
#include "transport/gloo/store.hpp"
#include "transport/mailbox/mailbox.hpp"

namespace echo_comm::core {

class Mesh final : public Backing {
 public:
  // Listens at `address` for every peer. `store` outlives the creation of the communicator.
  Mesh(Region region, int rank, const NetAddress& address, const Tokens& tokens, Store& store);
  ~Mesh() override;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return region_.size(); }
  [[nodiscard]] const Region& region() const { return region_; }
  [[nodiscard]] const Tokens& tokens() const { return tokens_; }
  [[nodiscard]] Store& store() const { return store_; }
  // Of one of the two connections to each peer.
  [[nodiscard]] gloo::transport::Context& context(std::size_t which) const { return *contexts_[which]; }
  [[nodiscard]] const NetAddress& address() const { return address_; }
  [[nodiscard]] std::size_t registered_bytes() const;

  [[nodiscard]] Link& link(int peer) const { return *links_[static_cast<std::size_t>(peer)]; }
  template <typename Act>
  void for_each(Act act) const {
    for (const auto& link : links_) {
      if (link) act(*link);
    }
  }

  // Called by links: something that the rank may wait for has changed.
  void changed() noexcept;
  // Waits until something changes, at most that long.
  void wait_for_change(std::chrono::milliseconds at_most);

  [[nodiscard]] bool died(int peer) const noexcept override;

  // If this rank's failure is the one on record, tells everybody, once.
  void tell_failure() noexcept;
  // Says goodbye, and why if there was a failure. Waits, but not long, until the others have seen it: whatever is still under way when a connection
  // closes may be lost.
  void leave() noexcept;
  void close() noexcept;

 private:
  void pass_failure_on() noexcept;

  Region region_;
  Mapping memory_;
  int rank_;
  NetAddress address_;
  Tokens tokens_;
  Store& store_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::array<std::shared_ptr<gloo::transport::Context>, 2> contexts_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank, none for the own

  std::mutex mutex_;
  std::condition_variable condition_;
  uint64_t changes_ = 0;
  std::atomic<bool> failure_told_{false};
};

// Blocks signals in this thread, and thereby in those that it starts.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace echo_comm::core
