#include "transport/gloo/link.hpp"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "base/deadline.hpp"
#include "transport/gloo/mesh.hpp"

namespace echo_comm::core {
namespace {

// A connection whose other side has not proved who it is by then is given up. A rank that was only slow connects anew.
constexpr std::chrono::milliseconds kHelloTime{700};
// How long the other side of a connection that failed may take to offer a new one.
constexpr std::chrono::milliseconds kNewOffer{1600};
constexpr int kAttempts = 8;

int64_t now_ns() { return Deadline::Clock::now().time_since_epoch().count(); }

// Gloo writes to sockets without MSG_NOSIGNAL; a peer that is gone must not cost the program its life. Whether a write
// got the signal cannot be seen from outside: after EPIPE Gloo tries again later as if the socket were full.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{};
    sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
};

std::size_t index_of(Route route) { return route == Route::kPair ? 0 : 1; }
int receiver_of(Route route, int rank) { return route == Route::kPair ? rank : kEveryone; }

}  // namespace

Link::Link(Mesh& mesh, int peer)
    : mesh_(mesh),
      peer_(peer),
      connections_{Connection(mesh.context(0), peer), Connection(mesh.context(1), peer)},
      out_(connections_[mesh.rank() < peer ? 0 : 1]),
      in_(connections_[mesh.rank() < peer ? 1 : 0]),
      ring_(Mapping::anonymous(static_cast<int64_t>(2 * kRing * kFrameBytes))) {}

Link::~Link() { close(); }

std::string Link::why() const {
  const std::lock_guard lock(life_);
  return why_;
}

// ---- connecting ------------------------------------------------------------------------------------------------

void Link::listen() {
  for (Connection& connection : connections_) connection.listen();
}

std::vector<char> Link::address() const {
  std::vector<char> both = connections_[0].address();
  const std::vector<char> second = connections_[1].address();
  both.insert(both.end(), second.begin(), second.end());
  return both;
}

void Link::start(std::vector<char> address) {
  peer_address_ = std::move(address);
  state_ = State::kConnecting;
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

void Link::run() {
  try {
    connect();
  } catch (const std::exception& error) {
    return die(error.what());
  }
  was_up_ = true;
  state_ = State::kUp;
  mesh_.changed();
  handle_frames();
}

// Gloo accepts the first connection that comes, whoever it is from. If it turns out to be a stranger's, both sides
// notice, offer each other new addresses through the store, and try again.
void Link::connect() {
  std::string failure;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt > 0) listen_again(attempt);
    if (try_connect(failure)) return;
    const std::lock_guard lock(life_);
    require_open();
  }
  fail(ErrorCode::kSystem, "no connection in ", kAttempts, " attempts; the last one: ", failure);
}

bool Link::try_connect(std::string& failure) {
  try {
    const auto middle = peer_address_.begin() + static_cast<std::ptrdiff_t>(peer_address_.size() / 2);
    open(connections_[0], {peer_address_.begin(), middle});
    open(connections_[1], {middle, peer_address_.end()});
    warm_up();
    return true;
  } catch (const std::exception& error) {
    failure = error.what();
    give_up_connections();
    const std::lock_guard lock(life_);
    buffers_ = {};  // before the pairs, which the next attempt replaces
    for (Connection& connection : connections_) connection.forget_hello();
    return false;
  }
}

void Link::open(Connection& connection, const std::vector<char>& address) {
  state_ = State::kConnecting;
  connection.connect(address);
  {
    const std::lock_guard lock(life_);
    require_open();
    hello_since_ = now_ns();
    state_ = State::kHello;
  }
  connection.say_hello(mesh_.tokens(), mesh_.rank(), [&] { register_buffers(connection); });
}

void Link::require_open() const { require(!closing_, ErrorCode::kPeer, "the connection was closed"); }

void Link::register_buffers(Connection& connection) {
  const Region& region = mesh_.region();
  const int rank = mesh_.rank();
  const std::size_t route_bytes = kSlots * static_cast<std::size_t>(region.slot_bytes());
  const std::lock_guard lock(life_);
  require_open();
  if (warm_.bytes() == nullptr) warm_ = Mapping::anonymous(2 * kWarmBytes);
  if (&connection == &in_) {
    buffers_.warm_in = in_.receive_into(kWarmBuffer, warm_.bytes(), kWarmBytes);
    buffers_.messages_in[0] = in_.receive_into(kPairBuffer, region.slot(peer_, rank, 0), route_bytes);
    buffers_.messages_in[1] = in_.receive_into(kEveryoneBuffer, region.slot(peer_, kEveryone, 0), route_bytes);
    buffers_.frames_in = in_.receive_into(kFrameBuffer, ring_.bytes(), kRing * kFrameBytes);
  } else {
    buffers_.warm_out = out_.send_from(kWarmBuffer, warm_.bytes() + kWarmBytes, kWarmBytes);
    buffers_.messages_out[0] = out_.send_from(kPairBuffer, region.slot(rank, peer_, 0), route_bytes);
    buffers_.messages_out[1] = out_.send_from(kEveryoneBuffer, region.slot(rank, kEveryone, 0), route_bytes);
    buffers_.frames_out = out_.send_from(kFrameBuffer, ring_.bytes() + kRing * kFrameBytes, kRing * kFrameBytes);
  }
}

void Link::warm_up() {
  buffers_.warm_out->send(0, kWarmBytes);
  buffers_.warm_in->waitRecv();
  buffers_.warm_out->waitSend();
  const std::lock_guard lock(life_);
  buffers_.warm_in.reset();
  buffers_.warm_out.reset();
  warm_ = Mapping();
}

void Link::listen_again(int attempt) {
  const auto key = [attempt](int from, int to) { return text("again/", from, "-", to, "/", attempt); };
  {
    const std::lock_guard lock(life_);
    require_open();
    listen();
  }
  mesh_.store().put(key(mesh_.rank(), peer_), address());
  const Deadline deadline = Deadline::in(kNewOffer);
  while (!mesh_.store().has(key(peer_, mesh_.rank()))) {
    require(!deadline.passed(), ErrorCode::kPeer, "it does not answer");
    {
      const std::lock_guard lock(life_);
      require_open();
    }
    mesh_.wait_for_change(std::chrono::milliseconds(5));
  }
  peer_address_ = mesh_.store().value_of(key(peer_, mesh_.rank()));
}

void Link::look_at_time() {
  if (state() != State::kHello) return;
  if (now_ns() - hello_since_ > std::chrono::nanoseconds(kHelloTime).count()) give_up_connections();
}

void Link::give_up_connections() noexcept {
  const NoSigpipe quiet;
  const std::lock_guard lock(life_);
  for (Connection& connection : connections_) connection.give_up();
}

void Link::die(const std::string& why) noexcept {
  {
    const std::lock_guard lock(life_);
    if (why_.empty()) why_ = why;
  }
  state_ = State::kDead;
  mesh_.changed();
}

void Link::close() noexcept {
  {
    const std::lock_guard lock(life_);
    closing_ = true;
  }
  give_up_connections();
  if (thread_.joinable()) thread_.join();
  const std::scoped_lock lock(sending_, life_);
  state_ = State::kDead;
  buffers_ = {};
  for (Connection& connection : connections_) connection.forget_hello();
}

// ---- receiving -------------------------------------------------------------------------------------------------

void Link::handle_frames() {
  uint64_t number = 1;
  try {
    for (;; ++number) {
      buffers_.frames_in->waitRecv();
      handle(number);
    }
  } catch (const Error& error) {  // the peer does not keep to the protocol
    const Error failure(ErrorCode::kInternal, text("gloo: rank ", peer_, " ", error.text()));
    mesh_.region().header().failure.record(failure, mesh_.rank());
    mesh_.tell_failure();
    give_up_connections();
    die(error.text());
  } catch (const std::exception& error) {
    // The connection is over, and Gloo tells that before it tells what arrived. A frame that is there counts.
    try {
      while (complete(number)) handle(number++);
    } catch (const std::exception&) {  // the first one says it
    }
    give_up_connections();  // the peer, if it lives, hears of it
    die(error.what());
  }
}

bool Link::complete(uint64_t number) const {
  const std::byte* entry = ring_.bytes() + (number - 1) % kRing * kFrameBytes;
  FrameHeader header;
  std::memcpy(&header, entry, sizeof header);
  if (header.magic != FrameHeader::kMagic || header.number != number) return false;
  const std::size_t payload = header.length > kInlineBytes ? 0 : static_cast<std::size_t>(header.length);
  uint64_t end = 0;
  std::memcpy(&end, entry + sizeof header + payload, sizeof end);
  return end == number;
}

void Link::handle(uint64_t number) {
  require(complete(number), ErrorCode::kInternal, "sent something that is not frame ", number);
  const std::byte* entry = ring_.bytes() + (number - 1) % kRing * kFrameBytes;
  const std::byte* payload = entry + sizeof(FrameHeader);
  FrameHeader header;
  std::memcpy(&header, entry, sizeof header);
  take_counts(header);
  switch (header.kind) {
    case FrameKind::kPairMessage: take_message(Route::kPair, header, payload); break;
    case FrameKind::kEveryoneMessage: take_message(Route::kEveryone, header, payload); break;
    case FrameKind::kCredit: asked_ = false; break;
    case FrameKind::kQuery: send(FrameKind::kCredit); break;
    case FrameKind::kFail: take_failure(header, payload); break;
    case FrameKind::kLeave:
      mesh_.region().control(peer_).left.store(1, std::memory_order_seq_cst);
      send(FrameKind::kLeaveSeen);
      leave_seen_ = true;  // it waits for nothing of ours any more
      break;
    case FrameKind::kLeaveSeen: leave_seen_ = true; break;
    case FrameKind::kReady: ready_ = true; break;
    case FrameKind::kGo: go_ = true; break;
    default: fail(ErrorCode::kInternal, "sent a frame of unknown kind ", static_cast<int>(header.kind));
  }
  handled_.store(number, std::memory_order_seq_cst);
  if (header.kind >= FrameKind::kFail) return mesh_.changed();
  mesh_.region().control(mesh_.rank()).doorbell.ring();
}

void Link::take_counts(const FrameHeader& header) {
  const Region& region = mesh_.region();
  const int rank = mesh_.rank();
  const auto raise = [](std::atomic<uint64_t>& counter, uint64_t value, uint64_t most, const char* what) {
    require(value <= most && value >= counter.load(std::memory_order_relaxed), ErrorCode::kInternal, "says it ", what,
            " ", value, " of ", most);
    counter.store(value, std::memory_order_seq_cst);
  };
  raise(acknowledged_, header.handled, sent_.load(std::memory_order_seq_cst), "handled frames");
  raise(region.consumed(rank, peer_, peer_).count, header.released_pair, region.produced(rank, peer_).count,
        "released messages");
  raise(region.consumed(rank, kEveryone, peer_).count, header.released_everyone, region.produced(rank, kEveryone).count,
        "released messages to everyone");
  region.control(peer_).call.store(header.call, std::memory_order_relaxed);
}

void Link::take_message(Route route, const FrameHeader& header, const std::byte* payload) {
  const Region& region = mesh_.region();
  const int to = receiver_of(route, mesh_.rank());
  Produced& produced = region.produced(peer_, to);
  const uint64_t message = produced.count.load(std::memory_order_relaxed);
  const std::atomic<uint64_t>& released = region.consumed(peer_, to, mesh_.rank()).count;
  require(header.message == message && message - released.load(std::memory_order_seq_cst) < kSlots,
          ErrorCode::kInternal, "sent message ", header.message, ", expected ", message, " at most ", kSlots, " ahead");
  require(header.length <= static_cast<uint64_t>(region.slot_bytes()), ErrorCode::kInternal, "sent a message of ",
          header.length, " bytes, slots have ", region.slot_bytes());
  if (header.length <= kInlineBytes) {
    std::memcpy(region.slot(peer_, to, message), payload, static_cast<std::size_t>(header.length));
  } else if (state() == State::kUp && was_up_) {
    try {
      buffers_.messages_in[index_of(route)]->waitRecv();  // it is there, before its frame: returns at once
    } catch (const std::exception&) {
      // The connection ended meanwhile; the frame proves that the bytes before it have arrived.
    }
  }
  produced.length[message % kSlots] = header.length;
  produced.count.store(message + 1, std::memory_order_seq_cst);
  // The peer has no room left by what it knows, but there is some: see released().
  if (uncredited(route) >= kSlots && released.load(std::memory_order_seq_cst) > credited_[index_of(route)]) {
    send(FrameKind::kCredit);
  }
}

void Link::take_failure(const FrameHeader& header, const std::byte* payload) {
  const bool known =
      header.code >= static_cast<int>(ErrorCode::kArgument) && header.code <= static_cast<int>(ErrorCode::kInternal);
  const std::string what(reinterpret_cast<const char*>(payload),
                         static_cast<std::size_t>(std::min<uint64_t>(header.length, kInlineBytes)));
  require(header.message < static_cast<uint64_t>(mesh_.size()), ErrorCode::kInternal, "tells of a failure of rank ",
          header.message, " of ", mesh_.size());
  mesh_.region().header().failure.record(
      Error(known ? static_cast<ErrorCode>(header.code) : ErrorCode::kInternal, what),
      static_cast<int>(header.message));
}

// ---- sending ---------------------------------------------------------------------------------------------------

void Link::send_failure(int origin, uint8_t code, std::string_view text) noexcept {
  FrameHeader header;
  header.kind = FrameKind::kFail;
  header.code = code;
  header.message = static_cast<uint64_t>(origin);
  header.length = std::min(text.size(), kInlineBytes);
  post(header, std::as_bytes(std::span(text.data(), static_cast<std::size_t>(header.length))), nullptr);
}

void Link::send_message(Route route, uint64_t message, std::size_t bytes) noexcept {
  FrameHeader header;
  header.kind = route == Route::kPair ? FrameKind::kPairMessage : FrameKind::kEveryoneMessage;
  header.message = message;
  header.length = bytes;
  const std::byte* slot = mesh_.region().slot(mesh_.rank(), receiver_of(route, peer_), message);
  if (bytes <= kInlineBytes) return post(header, {slot, bytes}, nullptr);
  post(header, {}, slot);
}

uint64_t Link::uncredited(Route route) const noexcept {
  const uint64_t arrived = mesh_.region().produced(peer_, receiver_of(route, mesh_.rank())).count;
  return arrived - credited_[index_of(route)].load(std::memory_order_seq_cst);
}

// Credits travel with every frame; one of their own costs the peer a wake-up. It is sent when the peer may be about to
// need it. A credit that is held back here is sent by take_message at the latest when the peer has used up all others:
// one of the two sees both the release and the message, as both are stored before the other one is looked at.
void Link::released(Route route) noexcept {
  if (uncredited(route) >= kSlots / 2) send(FrameKind::kCredit);
}

void Link::query() noexcept {
  if (state() == State::kUp && !asked_.exchange(true)) send(FrameKind::kQuery);
}

void Link::post(FrameHeader header, std::span<const std::byte> payload, const std::byte* long_payload) noexcept {
  const NoSigpipe quiet;
  const std::lock_guard lock(sending_);
  if (state() != State::kUp) return;
  try {
    post_locked(header, payload, long_payload);
  } catch (const std::exception& error) {
    // The peer is gone, or closes the other connection when it notices. Its last words may still be in there: the thread
    // looks at them, and then says that the peer is dead.
    if (dynamic_cast<const Error*>(&error) == nullptr) return;
    give_up_connections();
  }
}

void Link::post_locked(FrameHeader header, std::span<const std::byte> payload, const std::byte* long_payload) {
  const Region& region = mesh_.region();
  const int rank = mesh_.rank();
  const uint64_t number = sent_.load(std::memory_order_relaxed) + 1;
  if (number > kRing) {
    require(acknowledged_.load(std::memory_order_seq_cst) + kRing >= number, ErrorCode::kInternal,
            "does not say that it handled frame ", number - kRing);
    buffers_.frames_out->waitSend();  // of frame number - kRing, which was handled, hence sent: returns at once
  }
  header.number = number;
  header.handled = handled_.load(std::memory_order_seq_cst);
  header.call = region.control(rank).call.load(std::memory_order_relaxed);
  header.released_pair = region.consumed(peer_, rank, rank).count.load(std::memory_order_seq_cst);
  header.released_everyone = region.consumed(peer_, kEveryone, rank).count.load(std::memory_order_seq_cst);
  credited_[0] = header.released_pair;
  credited_[1] = header.released_everyone;

  if (long_payload != nullptr) {
    const Route route = header.kind == FrameKind::kPairMessage ? Route::kPair : Route::kEveryone;
    const std::size_t slot = header.message % kSlots;
    gloo::transport::Buffer& buffer = *buffers_.messages_out[index_of(route)];
    bool& sent_before = slot_sent_[index_of(route)][slot];
    if (sent_before) buffer.waitSend();  // of the message that was released before this slot was acquired
    sent_before = true;
    const std::size_t offset = slot * static_cast<std::size_t>(region.slot_bytes());
    buffer.send(offset, static_cast<std::size_t>(header.length), offset);
  }
  const std::size_t offset = (number - 1) % kRing * kFrameBytes;
  std::byte* entry = ring_.bytes() + kRing * kFrameBytes + offset;
  std::memcpy(entry, &header, sizeof header);
  if (!payload.empty()) std::memcpy(entry + sizeof header, payload.data(), payload.size());
  std::memcpy(entry + sizeof header + payload.size(), &number, sizeof number);
  sent_.store(number, std::memory_order_seq_cst);
  buffers_.frames_out->send(offset, sizeof header + payload.size() + sizeof number, offset);
}

}  // namespace echo_comm::core
