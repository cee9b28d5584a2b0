#include "transport/gloo/rendezvous.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "echo_comm/version.h"
#include "transport/gloo/endpoint.hpp"
#include "transport/mailbox/duration.hpp"

namespace echo_comm::core {
namespace {

using Milliseconds = std::chrono::milliseconds;

// After a failure rank 0 stays that long, so that ranks which start a little later get the reason too.
constexpr Milliseconds kFarewell{1000};
constexpr Milliseconds kShortestPause{1};
constexpr Milliseconds kLongestPause{20};

// Before the addresses, one for each rank.
struct JoinRecord {
  static constexpr uint32_t kMagic = 0x4a47'4345;  // "ECGJ"

  uint32_t magic = kMagic;
  uint32_t version = ECHO_VERSION;
  int32_t rank = 0;
  int32_t size = 0;
  int64_t slot_bytes = 0;
  uint64_t settings = 0;
  uint32_t address_bytes = 0;
  int32_t family = 0;
  char address[64] = {};  // for texts
};

std::string join_key(int rank) { return text("join/", rank); }
std::string seen_key(int rank) { return text("seen/", rank); }
constexpr const char* kErrorKey = "error";
constexpr const char* kComplaintKey = "complaint";

std::string ranks_text(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) list += text(i == 0 ? "" : ", ", ranks[i]);
  return list;
}

class Gathering {
 public:
  explicit Gathering(const Meeting& meeting)
      : m_(meeting),
        rank_(meeting.options.rank),
        size_(meeting.options.size),
        mesh_(std::make_shared<Mesh>(meeting.region, rank_, meeting.address, meeting.tokens, meeting.store)),
        records_(static_cast<std::size_t>(size_)) {}

  std::unique_ptr<Transport> run() {
    try {
      join();
      while (!step()) {
        mesh_->wait_for_change(pause_);
        pause_ = std::min(2 * pause_, kLongestPause);
      }
      return std::make_unique<GlooTransport>(mesh_);
    } catch (const Error& error) {
      publish(error);
      farewell();
      throw;
    }
  }

 private:
  void join() {
    JoinRecord own;
    own.rank = rank_;
    own.size = size_;
    own.slot_bytes = m_.region.slot_bytes();
    own.settings = m_.options.settings;
    own.family = m_.address.family();
    std::strncpy(own.address, m_.address.text().c_str(), sizeof own.address - 1);
    std::vector<char> addresses;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const std::vector<char> address = mesh_->link(peer).address();
      own.address_bytes = static_cast<uint32_t>(address.size());
      addresses.insert(addresses.end(), address.begin(), address.end());
    }
    own_record_.resize(sizeof own);
    std::memcpy(own_record_.data(), &own, sizeof own);
    own_record_.insert(own_record_.end(), addresses.begin(), addresses.end());
    if (rank_ == 0) set_own_record();
  }

  void set_own_record() {
    joined_ = true;
    require(m_.store.put(join_key(rank_), own_record_), ErrorCode::kState, "gloo: rank ", rank_, " of ", m_.place,
            " is already taken by a live process");
  }

  // Looks at everything once; true when the communicator is complete.
  bool step() {
    if (m_.store.has(kErrorKey)) throw_published();
    if (rank_ != 0 && !mesh_->link(0).was_up() && m_.is_over()) throw JobIsOver();
    if (rank_ == 0 && m_.store.has(kComplaintKey)) judge(read_record(kComplaintKey));
    for (int peer = 0; peer < size_; ++peer) look_for(peer);
    mesh_->for_each([](Link& link) { link.look_at_time(); });
    check_links();
    if (connected() && everybody_is()) return true;
    if (m_.deadline.passed()) throw too_late();
    return false;
  }

  // Rank 0 first: only a job with a live rank 0 is joined.
  void look_for(int peer) {
    auto& record = records_[static_cast<std::size_t>(peer)];
    if (peer == rank_ || record) return;
    if (rank_ != 0 && peer != 0 && !mesh_->link(0).was_up()) return;
    if (!m_.store.has(join_key(peer))) return;
    pause_ = kShortestPause;
    record = read_record(join_key(peer));
    if (rank_ == 0) judge(record);
    if (rank_ != 0 && peer == 0) {
      if (disagreement(header_of(*record))) {
        m_.store.put(kComplaintKey, own_record_);  // rank 0 tells everybody, if it is alive
        return;
      }
      set_own_record();
    }
    connect_to(peer, *record);
  }

  void connect_to(int peer, const std::vector<char>& record) {
    const JoinRecord header = header_of(record);
    const int index = rank_ < peer ? rank_ : rank_ - 1;  // a rank has no address for itself
    const std::size_t bytes = header.address_bytes;
    require(record.size() == sizeof header + static_cast<std::size_t>(size_ - 1) * bytes, ErrorCode::kMismatch,
            "gloo: rank ", peer, " of ", m_.place, " offers unknown addresses; all ranks must load the same library");
    const auto begin =
        record.begin() + static_cast<std::ptrdiff_t>(sizeof header + static_cast<std::size_t>(index) * bytes);
    mesh_->link(peer).start({begin, begin + static_cast<std::ptrdiff_t>(bytes)});
  }

  std::vector<char> read_record(const std::string& key) {
    std::vector<char> record = m_.store.value_of(key);
    require(record.size() >= sizeof(JoinRecord) && header_of(record).magic == JoinRecord::kMagic, ErrorCode::kMismatch,
            "gloo: a rank of ", m_.place, " announced itself in an unknown form; all ranks must load the same library");
    return record;
  }

  static JoinRecord header_of(const std::vector<char>& record) {
    JoinRecord header;
    std::memcpy(&header, record.data(), sizeof header);
    header.address[sizeof header.address - 1] = '\0';
    return header;
  }

  // Between this rank and another one, as rank 0 would put it.
  [[nodiscard]] std::optional<Error> disagreement(const JoinRecord& other) const {
    const JoinRecord own = header_of(own_record_);
    const auto differ = [&](const char* what, auto theirs, auto ours) {
      return Error(ErrorCode::kMismatch, text("gloo: rank ", other.rank, " of ", m_.place, " has ", what, " ", theirs,
                                              ", rank ", rank_, " has ", ours, "; all ranks must pass the same"));
    };
    if (other.version != own.version) return differ("library version", other.version, own.version);
    if (other.size != own.size) return differ("size", other.size, own.size);
    if (other.slot_bytes != own.slot_bytes) return differ("slot_bytes", other.slot_bytes, own.slot_bytes);
    if (other.settings != own.settings) return differ("settings", other.settings, own.settings);
    if (other.family != own.family) {
      return Error(ErrorCode::kMismatch,
                   text("gloo: rank ", other.rank, " of ", m_.place, " listens on ", other.address, ", rank ", rank_,
                        " on ", own.address, "; all need IPv4 or all IPv6: choose with iface= or host="));
    }
    return std::nullopt;
  }

  void judge(const std::optional<std::vector<char>>& record) {
    if (auto found = disagreement(header_of(*record))) throw Error(*found);
  }

  void check_links() {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || !mesh_->link(peer).dead()) continue;
      const Link& link = mesh_->link(peer);
      // Nobody listens there any more: the files are those of a job that was killed.
      if (rank_ != 0 && peer == 0 && !link.was_up()) throw JobIsOver();
      fail(ErrorCode::kPeer, "gloo: rank ", peer, " died while ", m_.place, " was being created (", link.why(), ")");
    }
  }

  [[nodiscard]] bool connected() const {
    bool all = true;
    mesh_->for_each([&](const Link& link) { all = all && link.state() == Link::State::kUp; });
    return all;
  }

  bool everybody_is() {
    if (rank_ != 0) {
      if (!ready_told_) mesh_->link(0).send(FrameKind::kReady);
      ready_told_ = true;
      return mesh_->link(0).go();
    }
    bool all = true;
    mesh_->for_each([&](const Link& link) { all = all && link.ready(); });
    if (all) {
      m_.retire();
      mesh_->for_each([](Link& link) { link.send(FrameKind::kGo); });
    }
    return all;
  }

  [[nodiscard]] Error too_late() const {
    std::vector<int> missing;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !m_.store.has(join_key(peer))) missing.push_back(peer);
    }
    const std::string limit = duration_text(m_.options.timeout);
    if (rank_ != 0 && !mesh_->link(0).was_up()) {
      return Error(ErrorCode::kTimeout, text("gloo: no rank 0 at ", m_.place, " within ", limit,
                                             "; is it running, and does it see the same directory?"));
    }
    if (!missing.empty()) {
      return Error(ErrorCode::kTimeout,
                   text("gloo: ", ranks_text(missing), " of ", size_, " did not join ", m_.place, " within ", limit,
                        ", rank ", rank_, " waited; started with the same directory, which all hosts share?"));
    }
    std::string unreached;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || mesh_->link(peer).state() == Link::State::kUp) continue;
      const auto& record = records_[static_cast<std::size_t>(peer)];
      unreached += text(unreached.empty() ? "" : ", ", "rank ", peer, " at ",
                        record ? header_of(*record).address : "an unknown address");
    }
    if (unreached.empty()) unreached = "no rank that another one needs";
    return Error(ErrorCode::kTimeout,
                 text("gloo: rank ", rank_, " of ", m_.place, ", at ", m_.address.text(), ", has no connection to ",
                      unreached, " after ", limit, "; choose interfaces that see each other with iface= or host="));
  }

  // ---- errors for all --------------------------------------------------------------------------------------------

  void publish(const Error& error) noexcept {
    if (error_seen_ || (rank_ != 0 && !joined_)) return;
    try {
      std::vector<char> value{static_cast<char>(error.code())};
      value.insert(value.end(), error.text().begin(), error.text().end());
      m_.store.put(kErrorKey, value);
    } catch (const std::exception&) {  // the error itself matters more
    }
  }

  [[noreturn]] void throw_published() {
    error_seen_ = true;
    const std::vector<char> value = m_.store.value_of(kErrorKey);
    const int code = value.empty() ? 0 : value[0];
    const bool known = code >= static_cast<int>(ErrorCode::kArgument) && code <= static_cast<int>(ErrorCode::kInternal);
    throw Error(known ? static_cast<ErrorCode>(code) : ErrorCode::kInternal,
                value.empty() ? std::string() : std::string(value.begin() + 1, value.end()));
  }

  // Rank 0 keeps the job's files until the others have read the error.
  void farewell() noexcept {
    try {
      if (rank_ != 0) {
        if (error_seen_) m_.store.put(seen_key(rank_), {1});
        return;
      }
      const Deadline end = Deadline::in(kFarewell);
      for (int peer = 1; peer < size_; ++peer) {
        while (!m_.store.has(seen_key(peer)) && !end.passed()) mesh_->wait_for_change(kLongestPause);
      }
    } catch (const std::exception&) {  // the error itself matters more
    }
  }

  const Meeting& m_;
  const int rank_;
  const int size_;
  std::shared_ptr<Mesh> mesh_;
  std::vector<char> own_record_;
  std::vector<std::optional<std::vector<char>>> records_;  // of the others
  Milliseconds pause_ = kShortestPause;
  bool joined_ = false;
  bool ready_told_ = false;
  bool error_seen_ = false;
};

}  // namespace

std::unique_ptr<Transport> meet(const Meeting& meeting) { return Gathering(meeting).run(); }

}  // namespace echo_comm::core
