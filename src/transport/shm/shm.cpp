#include "transport/shm/shm.hpp"

#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "transport/mailbox/mailbox.hpp"
#include "transport/shm/rendezvous.hpp"

namespace echo_comm::core {
namespace {

void check_options(const ShmOptions& options) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  const std::string& name = options.name;
  require(!name.empty() && name.size() <= 64 && name.find_first_not_of(kAllowed) == std::string::npos,
          ErrorCode::kArgument, "shm: name '", name, "' must be 1 to 64 characters of A-Z a-z 0-9 . _ -");
  require(options.rank >= 0 && options.rank < options.size, ErrorCode::kArgument, "shm: rank is ", options.rank,
          ", must be from 0 to size - 1 = ", options.size - 1);
  require(options.timeout.count() > 0, ErrorCode::kArgument, "shm: timeout is ", options.timeout.count(),
          " ms, must be positive");
}

}  // namespace

ProcessIdentity ProcessIdentity::own() {
  ProcessIdentity identity;
  identity.pid = static_cast<uint64_t>(getpid());
  struct stat status {};
  if (stat("/proc/self/ns/pid", &status) == 0) identity.pid_namespace = status.st_ino;
  const auto* random = reinterpret_cast<const void*>(getauxval(AT_RANDOM));  // NOLINT(performance-no-int-to-ptr)
  if (random != nullptr) std::memcpy(&identity.program, random, sizeof identity.program);
  return identity;
}

Note Note::of(const Error& error) {
  Note note;
  note.code = static_cast<int32_t>(error.code());
  const std::size_t length = std::min(error.text().size(), kTextBytes - 1);
  std::memcpy(note.text, error.text().data(), length);
  return note;
}

Error Note::error() const {
  const bool known = code >= static_cast<int>(ErrorCode::kArgument) && code <= static_cast<int>(ErrorCode::kInternal);
  return Error(known ? static_cast<ErrorCode>(code) : ErrorCode::kInternal,
               std::string(text, strnlen(text, kTextBytes)));
}

SocketAddress guard_address(const std::string& name) {
  return SocketAddress(echo_comm::core::text("echo_comm/", geteuid(), "/", name));
}

SocketAddress join_address(const std::string& name) {
  return SocketAddress(echo_comm::core::text("echo_comm/", geteuid(), "/", name, "/join"));
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) list += text(i == 0 ? "" : ", ", ranks[i]);
  return list;
}

std::unique_ptr<Transport> create_shm(const ShmOptions& options) {
  check_options(options);
  const Deadline deadline = Deadline::in(options.timeout);
  Region region(options.size, options.slot_bytes);
  auto memory = options.rank == 0 ? host(options, region, deadline) : join(options, region, deadline);
  return std::make_unique<Mailbox>(region, options.rank, "shm", std::move(memory));
}

}  // namespace echo_comm::core
