#include "testing/transports.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "transport/inproc/inproc.hpp"
#include "transport/shm/shm.hpp"

namespace echo_comm::testing {

void over_inproc(int size, const TransportBody& body, int64_t slot_bytes) {
  auto transports = core::create_inproc(size, slot_bytes);
  spawn_threads(size, [&](int rank, int) {
    const std::unique_ptr<core::Transport> own = std::move(transports[static_cast<std::size_t>(rank)]);
    body(*own);
  });
}

void over_shm(int size, const TransportBody& body, int64_t slot_bytes) {
  core::ShmOptions options;
  options.name = unique_name();
  options.size = size;
  options.slot_bytes = slot_bytes;
  spawn_processes(size, [&](int rank, int) {
    options.rank = rank;
    body(*core::create_shm(options));
  });
}

const char* name_of(Kind kind) { return kind == Kind::kInproc ? "inproc" : "shm"; }

void over(Kind kind, int size, const TransportBody& body, int64_t slot_bytes) {
  kind == Kind::kInproc ? over_inproc(size, body, slot_bytes) : over_shm(size, body, slot_bytes);
}

}  // namespace echo_comm::testing
