// Room collective: who sends what to whom, in which order. One file per algorithm, readable from top to bottom.
//
// A Communicator is one rank's end of a group: a transport, the settings and the table that all ranks share, the number
// of the next call and the counters. One thread at a time makes calls; abort(), counters() and last_choice() may come
// from any. Calls that were started instead of run go on in a thread of the communicator, in order; a blocking call
// waits for those before it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/workers.hpp"
#include "collective/counters.hpp"
#include "collective/progress.hpp"
#include "collective/request.hpp"
#include "collective/select.hpp"
#include "transport/transport.hpp"

namespace echo_comm::core {

struct Settings {
  std::chrono::milliseconds timeout{30'000};
  bool batch_invariant = false;
  int threads = 1;  // of this rank
  Table table = {};
};

class Communicator {
 public:
  Communicator(std::unique_ptr<Transport> transport, Settings settings);
  // Started calls that have not ended fail with kAborted.
  ~Communicator();

  [[nodiscard]] int rank() const { return transport_->rank(); }
  [[nodiscard]] int size() const { return transport_->size(); }
  [[nodiscard]] const Transport& transport() const { return *transport_; }
  [[nodiscard]] int threads() const { return workers_.threads(); }
  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] const Table& table() const { return settings_.table; }
  // Before the first call, all ranks together (the threads of inproc by themselves: they share their settings).
  // agree: rank 0's table and `tune` become those of all; false on a rank that had others.
  bool agree(bool& tune);
  // Measures and fills the table (tuner.hpp) within about `budget`. Afterwards the counting of calls begins anew.
  void tune(std::chrono::milliseconds budget);

  // The call as it would go. Throws kArgument where the caller forces what does not exist.
  [[nodiscard]] Choice choose(const Wish& wish) const { return choose(wish, settings_.table); }

  void run(const Request& request);
  // By this row, whatever the table says; all ranks pass the same.
  void run_as(const Request& request, const TableRow& row);
  std::shared_ptr<Ticket> start(const Request& request);

  void abort(const std::string& reason) noexcept;

  [[nodiscard]] Counters counters() const;
  [[nodiscard]] WaitStats wait_stats() const;
  // Of the last call that ended well.
  [[nodiscard]] std::optional<Choice> last_choice() const;

 private:
  // What is published of the calls that ended.
  struct Record {
    Counters counters;
    WaitStats waits;
    std::optional<Choice> last;
  };

  [[nodiscard]] Choice choose(const Wish& wish, const Table& table) const;
  void execute(const Request& request, const Choice& choice);
  void begin_anew();
  void carry_out(const Request& request, const Choice& choice, Counters& counters);

  std::unique_ptr<Transport> transport_;
  Settings settings_;
  Workers workers_;
  uint64_t sequence_ = 1;  // of the next call; the transport shows 0 for a rank that made none yet
  mutable std::mutex record_mutex_;
  Record record_;
  Progress progress_;  // last: its thread uses the others
};

}  // namespace echo_comm::core
