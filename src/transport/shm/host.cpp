// Rendezvous, rank 0's side. One loop over poll(): nobody who connects, whatever he sends or does not send, can make
// rank 0 wait for him alone.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <vector>

#include "transport/mailbox/duration.hpp"
#include "transport/shm/rendezvous.hpp"

namespace echo_comm::core {
namespace {

// A connection that did not say Hello by then is dropped.
constexpr std::chrono::milliseconds kHelloTime{5000};
// After a failure rank 0 listens on for that long, so that ranks which start a little later get the reason too.
constexpr std::chrono::milliseconds kFarewellTime{1000};
// Between the end of a dying process's locks and of its sockets.
constexpr std::chrono::milliseconds kDeathShows{1000};
// Strangers that may be connected at once; then the oldest goes.
constexpr std::size_t kMostStrangers = 64;

struct Guest {
  Fd socket;
  Deadline hello_by;
  int rank = -1;          // -1: a stranger, has not said Hello
  bool accepted = false;  // got the region
  bool ready = false;
  bool gone = false;  // to be removed
  ProcessIdentity process{};
};

class Host {
 public:
  Host(const ShmOptions& options, Region& region, const Deadline& deadline)
      : options_(options), region_(region), deadline_(deadline) {}

  std::shared_ptr<SharedMemory> run() {
    Fd guard = open_guard();
    listen();
    memory_ = create_memory();
    if (memory_ != nullptr) memory_->keep(std::move(guard));
    while (!over()) {
      const std::vector<pollfd> events = wait_for_events();
      for (std::size_t i = 0; i < guests_.size(); ++i) {
        if (events[i + 1].revents != 0) serve(guests_[i]);
      }
      if (events[0].revents != 0) accept_guests();
      remove_guests();
    }
    if (!failure_ && !all_ready()) failure_ = missing();
    tell_all(failure_ ? Note::of(*failure_) : Note::of(NoteKind::kGo));
    if (failure_) throw Error(*failure_);
    return memory_;
  }

 private:
  [[nodiscard]] const std::string& name() const { return options_.name; }

  Fd open_guard() const {
    Fd guard = open_socket(SOCK_DGRAM);
    const int error = bind_to(guard, guard_address(name()));
    require(error != EADDRINUSE, ErrorCode::kState, "shm: the name '", name(),
            "' is in use by a live job; choose another name or wait for it to end");
    if (error != 0) fail_errno(ErrorCode::kSystem, text("shm: name '", name(), "'"), error);
    return guard;
  }

  void listen() {
    listener_ = open_socket(SOCK_SEQPACKET);
    const int error = bind_to(listener_, join_address(name()));
    if (error != 0) fail_errno(ErrorCode::kSystem, text("shm: join socket of '", name(), "'"), error);
    if (::listen(listener_.get(), 2 * kMaxRanks) != 0) fail_errno(ErrorCode::kSystem, "shm: listen", errno);
  }

  // Not enough memory is a failure that all ranks shall hear of.
  std::shared_ptr<SharedMemory> create_memory() {
    try {
      auto memory = std::make_shared<SharedMemory>(create_memory_file(region_, name()), region_, 0, name());
      region_.format(memory->bytes());
      region_.announce(0);
      return memory;
    } catch (const Error& error) {
      set_failure(error);
      return nullptr;
    }
  }

  void set_failure(const Error& error) {
    if (failure_) return;
    failure_ = error;
    farewell_.emplace(Deadline::in(kFarewellTime));
  }

  [[nodiscard]] bool all_ready() const {
    return count([](const Guest& g) { return g.ready; }) == options_.size - 1;
  }
  [[nodiscard]] bool over() const {
    if (deadline_.passed()) return true;
    if (!failure_) return all_ready();
    return farewell_->passed() || heard_ >= options_.size - 1;
  }
  template <typename Has>
  [[nodiscard]] int count(Has has) const {
    return static_cast<int>(std::count_if(guests_.begin(), guests_.end(), has));
  }

  // One entry for the listener, then one per guest.
  [[nodiscard]] std::vector<pollfd> wait_for_events() const {
    std::vector<pollfd> events{{listener_.get(), POLLIN, 0}};
    auto left = farewell_ ? std::min(farewell_->left(), deadline_.left()) : deadline_.left();
    for (const Guest& guest : guests_) {
      events.push_back({guest.socket.get(), POLLIN, 0});
      if (guest.rank < 0) left = std::min(left, guest.hello_by.left());
    }
    if (poll(events.data(), events.size(), poll_time(left)) < 0) {
      for (pollfd& event : events) event.revents = 0;  // a signal: nothing to read, look at the time again
    }
    return events;
  }

  void accept_guests() {
    for (;;) {
      Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) return check_accept(errno);
      if (peer_user(socket) != geteuid()) continue;
      const auto stranger = [](const Guest& g) { return g.rank < 0; };
      if (static_cast<std::size_t>(count(stranger)) >= kMostStrangers) {
        guests_.erase(std::find_if(guests_.begin(), guests_.end(), stranger));
      }
      guests_.push_back({std::move(socket), Deadline::in(kHelloTime)});
    }
  }

  void check_accept(int error) {
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED) return;
    listener_ = Fd();  // it would stay readable
    set_failure(Error(ErrorCode::kSystem, text("shm: a rank that wants to join '", name(),
                                               "' cannot: ", std::system_category().message(error))));
  }

  void remove_guests() {
    std::erase_if(guests_, [](const Guest& g) { return g.gone || (g.rank < 0 && g.hello_by.passed()); });
  }

  // ---- one guest -------------------------------------------------------------------------------------------------

  void serve(Guest& guest) {
    if (guest.rank < 0) return welcome(guest);
    Note note;
    const ssize_t got = read_message(guest.socket, &note, sizeof note);
    if (got < 0) return;
    const bool valid = got == sizeof note && note.magic == kRendezvousMagic;
    if (valid && note.kind == NoteKind::kReady && guest.accepted) {
      guest.ready = alive(guest);
    } else if (valid && note.kind == NoteKind::kError) {
      const Error error = note.error();
      set_failure(Error(error.code(), text("rank ", guest.rank, ": ", error.text())));
      guest.gone = true;
    } else {
      set_failure(
          Error(ErrorCode::kPeer, text("shm: rank ", guest.rank, " died while '", name(), "' was being created")));
      guest.gone = true;
    }
  }

  // The sign of life must show here before anybody relies on it. Without it the rank has just died, which its socket
  // tells a moment later, or this system's record locks are no use.
  bool alive(const Guest& guest) {
    if (!memory_->died(guest.rank)) return true;
    pollfd event{guest.socket.get(), POLLIN, 0};
    if (poll(&event, 1, poll_time(kDeathShows)) == 0) {
      set_failure(
          Error(ErrorCode::kSystem, text("shm: rank ", guest.rank, " of '", name(),
                                         "' holds no lock on the shared memory; record locks do not work here")));
    }
    return false;
  }

  void welcome(Guest& guest) {
    Hello hello;
    const ssize_t got = read_message(guest.socket, &hello, sizeof hello);
    if (got < 0) return;
    guest.gone = true;  // unless it turns out to be a rank
    if (got < static_cast<ssize_t>(kHelloPrefix) || hello.magic != kRendezvousMagic) return;
    if (auto disagreement = compare(hello, got)) {
      set_failure(*disagreement);
    } else if (hello.rank < 1 || hello.rank >= options_.size) {
      return;
    } else if (taken(hello.rank)) {
      const Note note = Note::of(Error(
          ErrorCode::kState, text("shm: rank ", hello.rank, " of '", name(), "' is already taken by a live process")));
      send_message(guest.socket, &note, sizeof note);
      return;
    }
    guest.gone = false;
    guest.rank = std::max(0, hello.rank);
    guest.process = hello.process;
    ++heard_;
    check_process(guest);
    if (failure_) return;  // waits for the farewell
    const Note note = Note::of(NoteKind::kRegion);
    guest.accepted = send_message(guest.socket, &note, sizeof note, memory_->file());
  }

  [[nodiscard]] bool taken(int rank) const {
    return count([rank](const Guest& g) { return g.rank == rank && !g.gone; }) > 0;
  }

  [[nodiscard]] std::optional<Error> compare(const Hello& hello, ssize_t got) const {
    if (hello.version != kRendezvousVersion || got != sizeof hello) {
      return Error(ErrorCode::kMismatch,
                   text("shm: a rank of '", name(), "' uses rendezvous version ", hello.version, ", rank 0 uses ",
                        kRendezvousVersion, "; all ranks must load the same library"));
    }
    const auto differ = [&](const char* what, auto theirs, auto own) {
      return Error(ErrorCode::kMismatch, text("shm: rank ", hello.rank, " of '", name(), "' has ", what, " ", theirs,
                                              ", rank 0 has ", own, "; all ranks must pass the same"));
    };
    if (hello.size != options_.size) return differ("size", hello.size, options_.size);
    if (hello.slot_bytes != region_.slot_bytes()) return differ("slot_bytes", hello.slot_bytes, region_.slot_bytes());
    if (hello.settings != options_.settings) return differ("settings", hello.settings, options_.settings);
    return std::nullopt;
  }

  // A record lock belongs to a process, so ranks in one process could not see each other die (memory.hpp).
  void check_process(const Guest& guest) {
    int other = guest.process == own_ ? 0 : -1;
    for (const Guest& g : guests_) {
      if (&g != &guest && g.rank >= 0 && g.process == guest.process) other = g.rank;
    }
    if (other < 0) return;
    set_failure(Error(ErrorCode::kState, text("shm: ranks ", other, " and ", guest.rank, " of '", name(),
                                              "' are in the same process; use echo_comm_create_all for ranks that are "
                                              "threads")));
  }

  // ---- the end ---------------------------------------------------------------------------------------------------

  [[nodiscard]] Error missing() const {
    std::vector<int> ranks;
    for (int r = 1; r < options_.size; ++r) {
      if (count([r](const Guest& g) { return g.rank == r && g.ready; }) == 0) ranks.push_back(r);
    }
    return Error(ErrorCode::kTimeout, text("shm: ", ranks_text(ranks), " of ", options_.size, " did not join '", name(),
                                           "' within ", duration_text(options_.timeout),
                                           "; started with the same name, on this host, by the same user?"));
  }

  // Before the last word the join socket is closed: who comes later meets a live job, not a rendezvous.
  void tell_all(const Note& note) {
    listener_ = Fd();
    for (const Guest& guest : guests_) {
      if (guest.rank >= 0) send_message(guest.socket, &note, sizeof note);
    }
  }

  const ShmOptions& options_;
  Region& region_;
  const Deadline deadline_;
  const ProcessIdentity own_ = ProcessIdentity::own();
  Fd listener_;
  std::shared_ptr<SharedMemory> memory_;
  std::vector<Guest> guests_;
  int heard_ = 0;  // ranks that said Hello, also those that are gone again
  std::optional<Error> failure_;
  std::optional<Deadline> farewell_;
};

}  // namespace

std::shared_ptr<SharedMemory> host(const ShmOptions& options, Region& region, const Deadline& deadline) {
  return Host(options, region, deadline).run();
}

}  // namespace echo_comm::core
