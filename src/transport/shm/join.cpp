// Rendezvous, the side of every rank but 0.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "transport/mailbox/duration.hpp"
#include "transport/shm/rendezvous.hpp"

namespace echo_comm::core {
namespace {

using Clock = Deadline::Clock;

// Rank 0 binds the guard a moment before it listens. A guard without a listener for longer than this is a job that
// has already started.
constexpr std::chrono::milliseconds kGuardAlone{1000};
constexpr std::chrono::milliseconds kLongestPause{20};

class Joiner {
 public:
  Joiner(const ShmOptions& options, Region& region, const Deadline& deadline)
      : options_(options), region_(region), deadline_(deadline) {}

  std::shared_ptr<SharedMemory> run() {
    for (;;) {
      connect();
      if (auto file = say_hello()) return enter(std::move(*file));
      pause_a_little();  // rank 0 was just going; perhaps another one comes
    }
  }

 private:
  [[nodiscard]] const std::string& name() const { return options_.name; }

  [[noreturn]] void fail_in_use() const {
    fail(ErrorCode::kState, "shm: the name '", name(),
         "' is in use by a live job; choose another name or wait for it to end");
  }

  void pause_a_little() {
    require(!deadline_.passed(), ErrorCode::kTimeout, "shm: no rank 0 at '", name(), "' within ",
            duration_text(options_.timeout), "; is it running with the same name, on this host, as the same user?");
    poll(nullptr, 0, static_cast<int>(std::min<int64_t>(pause_.count(), poll_time(deadline_.left()))));
    pause_ = std::min(2 * pause_, kLongestPause);
  }

  [[nodiscard]] bool guard_is_bound() const { return connect_to(open_socket(SOCK_DGRAM), guard_address(name())) == 0; }

  void connect() {
    for (;; pause_a_little()) {
      socket_ = open_socket(SOCK_SEQPACKET);
      const int error = connect_to(socket_, join_address(name()));
      if (error == 0) break;
      if (error != ECONNREFUSED || !guard_is_bound()) {
        guard_alone_since_.reset();
      } else if (!guard_alone_since_) {
        guard_alone_since_ = Clock::now();
      } else if (Clock::now() - *guard_alone_since_ > kGuardAlone) {
        fail_in_use();
      }
    }
    const auto user = peer_user(socket_);
    require(user == geteuid(), ErrorCode::kState, "shm: the name '", name(), "' is held by a process of user ",
            user.value_or(static_cast<uid_t>(-1)), ", this rank runs as user ", geteuid(), "; choose another name");
  }

  // A message of rank 0, waited for. Nothing when rank 0 is gone; throws what rank 0 reports.
  std::optional<Note> next_note(Fd* file) {
    for (;;) {
      Note note;
      const ssize_t got = read_message(socket_, &note, sizeof note, file);
      if (got == 0) return std::nullopt;
      if (got > 0) {
        require(got == sizeof note && note.magic == kRendezvousMagic, ErrorCode::kMismatch, "shm: rank 0 of '", name(),
                "' sent something unknown; all ranks must load the same library");
        if (note.kind == NoteKind::kError) throw note.error();
        return note;
      }
      if (deadline_.passed()) throw not_complete();
      pollfd event{socket_.get(), POLLIN, 0};
      poll(&event, 1, poll_time(deadline_.left()));
    }
  }

  std::optional<Fd> say_hello() {
    Hello hello;
    hello.rank = options_.rank;
    hello.size = options_.size;
    hello.slot_bytes = region_.slot_bytes();
    hello.settings = options_.settings;
    hello.process = ProcessIdentity::own();
    if (!send_message(socket_, &hello, sizeof hello)) return std::nullopt;
    Fd file;
    const auto note = next_note(&file);
    if (!note) return std::nullopt;
    require(note->kind == NoteKind::kRegion && file, ErrorCode::kSystem, "shm: rank 0 of '", name(),
            "' sent no shared memory; is the limit of open files (ulimit -n) reached?");
    return file;
  }

  std::shared_ptr<SharedMemory> enter(Fd file) {
    try {
      auto memory = std::make_shared<SharedMemory>(std::move(file), region_, options_.rank, name());
      region_.attach(memory->bytes());
      attached_ = true;
      region_.announce(options_.rank);
      const Note ready = Note::of(NoteKind::kReady);
      send_message(socket_, &ready, sizeof ready);  // a rank 0 that is gone shows in the next line
      const auto go = next_note(nullptr);
      require(go.has_value(), ErrorCode::kPeer, "shm: rank 0 died while '", name(), "' was being created");
      require(go->kind == NoteKind::kGo, ErrorCode::kInternal, "shm: rank 0 of '", name(), "' sent a wrong message");
      return memory;
    } catch (const Error& error) {
      const Note note = Note::of(error);
      send_message(socket_, &note, sizeof note);
      throw;
    }
  }

  // The ranks that are missing have not announced themselves.
  [[nodiscard]] Error not_complete() const {
    std::vector<int> missing;
    for (int r = 0; attached_ && r < options_.size; ++r) {
      if (region_.control(r).joined.load(std::memory_order_acquire) == 0) missing.push_back(r);
    }
    if (missing.empty()) missing.push_back(0);  // all are there, but it did not say so
    return Error(ErrorCode::kTimeout, text("shm: waited for ", ranks_text(missing), " of ", options_.size, " to join '",
                                           name(), "', timed out after ", duration_text(options_.timeout)));
  }

  const ShmOptions& options_;
  Region& region_;
  const Deadline deadline_;
  Fd socket_;
  bool attached_ = false;
  std::chrono::milliseconds pause_{1};
  std::optional<Clock::time_point> guard_alone_since_;
};

}  // namespace

std::shared_ptr<SharedMemory> join(const ShmOptions& options, Region& region, const Deadline& deadline) {
  return Joiner(options, region, deadline).run();
}

}  // namespace echo_comm::core
