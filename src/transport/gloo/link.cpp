#include "transport/gloo/link.hpp"

#include <netinet/in.h>
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

bool same_token(const unsigned char* a, const unsigned char* b, std::size_t bytes) {
  unsigned char difference = 0;
  for (std::size_t i = 0; i < bytes; ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

sockaddr_storage socket_of(const std::vector<char>& address) {
  sockaddr_storage socket{};
  if (address.size() >= sizeof socket) std::memcpy(&socket, address.data(), sizeof socket);
  return socket;
}

}  // namespace

Link::Link(Mesh& mesh, int peer)
    : mesh_(mesh), peer_(peer), ring_(Mapping::anonymous(static_cast<int64_t>(2 * kRing * kFrameBytes))) {}

Link::~Link() { close(); }

std::string Link::why() const {
  const std::lock_guard lock(life_);
  return why_;
}

// ---- connecting ------------------------------------------------------------------------------------------------

std::unique_ptr<gloo::transport::Pair>& Link::pair() const { return mesh_.context()->getPair(peer_); }

// A buffer must be registered before anything for it arrives: Gloo's thread otherwise tries again and again, and holds
// the lock that the registration needs.
void Link::listen() {
  hello_in_ = {};
  mesh_.context()->createPair(peer_);
  buffers_.hello_in = pair()->createRecvBuffer(kHelloBuffer, &hello_in_, sizeof hello_in_);
  buffers_.hello_out = pair()->createSendBuffer(kHelloBuffer, &hello_out_, sizeof hello_out_);
}

std::vector<char> Link::address() const { return pair()->address().bytes(); }

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
    require(!closing_, ErrorCode::kPeer, "the connection was closed");
  }
  fail(ErrorCode::kSystem, "no connection in ", kAttempts, " attempts; the last one: ", failure);
}

bool Link::try_connect(std::string& failure) {
  try {
    state_ = State::kConnecting;
    const bool accepting = accepts();  // now: a pair that connects gets another address
    pair()->connect(peer_address_);
    say_hello(accepting);
    return true;
  } catch (const std::exception& error) {
    failure = error.what();
    give_up_connection();
    const std::lock_guard lock(life_);
    buffers_ = {};  // before the pair, which the next attempt replaces
    return false;
  }
}

// Gloo's rule: the pair with the greater address connects, the other one accepts.
bool Link::accepts() const {
  const sockaddr_storage own = socket_of(address());
  const sockaddr_storage other = socket_of(peer_address_);
  if (own.ss_family == AF_INET) {
    const auto& a = reinterpret_cast<const sockaddr_in&>(own);
    const auto& b = reinterpret_cast<const sockaddr_in&>(other);
    const int order = std::memcmp(&a.sin_addr, &b.sin_addr, sizeof a.sin_addr);
    return order != 0 ? order < 0 : a.sin_port < b.sin_port;
  }
  const auto& a = reinterpret_cast<const sockaddr_in6&>(own);
  const auto& b = reinterpret_cast<const sockaddr_in6&>(other);
  const int order = std::memcmp(&a.sin6_addr, &b.sin6_addr, sizeof a.sin6_addr);
  return order != 0 ? order < 0 : a.sin6_port < b.sin6_port;
}

// The connecting side shows its token first; only if it is right does the other one show its own. A third hello says
// that the connecting side is ready to receive, as the second one says of the accepting side.
void Link::say_hello(bool accepting) {
  const Tokens& tokens = mesh_.tokens();
  const auto& own = accepting ? tokens.accept : tokens.connect;
  const auto& wanted = accepting ? tokens.connect : tokens.accept;
  hello_out_.rank = mesh_.rank();
  std::memcpy(hello_out_.token, own.data(), own.size());
  {
    const std::lock_guard lock(life_);
    require(!closing_, ErrorCode::kPeer, "the connection was closed");
    hello_since_ = now_ns();
    state_ = State::kHello;
  }
  const auto send = [&] {
    buffers_.hello_out->send(0, sizeof hello_out_);
    buffers_.hello_out->waitSend();
  };
  if (!accepting) send();
  buffers_.hello_in->waitRecv();
  require(hello_in_.magic == HelloFrame::kMagic && hello_in_.rank == peer_ &&
              same_token(hello_in_.token, wanted.data(), wanted.size()),
          ErrorCode::kPeer, "somebody who does not know the job's token is at the other end");
  register_buffers();
  send();
  if (accepting) buffers_.hello_in->waitRecv();
  warm_up();
}

void Link::register_buffers() {
  const Region& region = mesh_.region();
  const int rank = mesh_.rank();
  const std::size_t route_bytes = kSlots * static_cast<std::size_t>(region.slot_bytes());
  const std::lock_guard lock(life_);
  require(!closing_, ErrorCode::kPeer, "the connection was closed");
  gloo::transport::Pair& own = *pair();
  warm_ = Mapping::anonymous(2 * kWarmBytes);
  buffers_.warm_in = own.createRecvBuffer(kWarmBuffer, warm_.bytes(), kWarmBytes);
  buffers_.warm_out = own.createSendBuffer(kWarmBuffer, warm_.bytes() + kWarmBytes, kWarmBytes);
  buffers_.messages_in[0] = own.createRecvBuffer(kPairBuffer, region.slot(peer_, rank, 0), route_bytes);
  buffers_.messages_in[1] = own.createRecvBuffer(kEveryoneBuffer, region.slot(peer_, kEveryone, 0), route_bytes);
  buffers_.messages_out[0] = own.createSendBuffer(kPairBuffer, region.slot(rank, peer_, 0), route_bytes);
  buffers_.messages_out[1] = own.createSendBuffer(kEveryoneBuffer, region.slot(rank, kEveryone, 0), route_bytes);
  buffers_.frames_in = own.createRecvBuffer(kFrameBuffer, ring_.bytes(), kRing * kFrameBytes);
  buffers_.frames_out = own.createSendBuffer(kFrameBuffer, ring_.bytes() + kRing * kFrameBytes, kRing * kFrameBytes);
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
    require(!closing_, ErrorCode::kPeer, "the connection was closed");
    listen();
  }
  mesh_.store().put(key(mesh_.rank(), peer_), address());
  const Deadline deadline = Deadline::in(kNewOffer);
  while (!mesh_.store().has(key(peer_, mesh_.rank()))) {
    require(!deadline.passed(), ErrorCode::kPeer, "it does not answer");
    {
      const std::lock_guard lock(life_);
      require(!closing_, ErrorCode::kPeer, "the connection was closed");
    }
    mesh_.wait_for_change(std::chrono::milliseconds(5));
  }
  peer_address_ = mesh_.store().value_of(key(peer_, mesh_.rank()));
}

void Link::look_at_time() {
  if (state() != State::kHello) return;
  if (now_ns() - hello_since_ > std::chrono::nanoseconds(kHelloTime).count()) give_up_connection();
}

// A closed pair wakes those that wait for it only when somebody uses it.
void Link::give_up_connection() noexcept {
  try {
    const std::lock_guard lock(life_);
    if (!pair()) return;
    pair()->close();
    char byte = 0;
    const auto wake = pair()->createSendBuffer(kWakeBuffer, &byte, 1);
    wake->send(0, 1);
  } catch (...) {  // the exception that Gloo throws for a closed pair: its other users get it too
    return;
  }
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
  give_up_connection();
  if (thread_.joinable()) thread_.join();
  const std::scoped_lock lock(sending_, life_);
  state_ = State::kDead;
  buffers_ = {};
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
    give_up_connection();
    die(error.text());
  } catch (const std::exception& error) {
    // The connection is over, and Gloo tells that before it tells what arrived. A frame that is there counts.
    try {
      while (complete(number)) handle(number++);
    } catch (const std::exception&) {  // the first one says it
    }
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
  mesh_.region().header().failure.record(
      Error(known ? static_cast<ErrorCode>(header.code) : ErrorCode::kInternal, what), peer_);
}

// ---- sending ---------------------------------------------------------------------------------------------------

void Link::send(FrameKind kind, uint8_t code, std::string_view text) noexcept {
  FrameHeader header;
  header.kind = kind;
  header.code = code;
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
    // The thread gets the same exception, looks what arrived, and then says that the peer is dead.
    if (dynamic_cast<const Error*>(&error) == nullptr) return;
    give_up_connection();
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
