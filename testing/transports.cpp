#include "testing/transports.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "transport/gloo/gloo.hpp"
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

void over_gloo_in_process(int size, const TransportBody& body, int64_t slot_bytes) {
  auto transports = core::create_gloo_in_process(size, slot_bytes);
  spawn_threads(size, [&](int rank, int) {
    const std::unique_ptr<core::Transport> own = std::move(transports[static_cast<std::size_t>(rank)]);
    body(*own);
  });
}

void over_gloo(int size, const TransportBody& body, int64_t slot_bytes) {
  const TemporaryDirectory directory;
  core::GlooOptions options;
  options.directory = directory.path();
  options.interface = "lo";
  options.size = size;
  options.slot_bytes = slot_bytes;
  spawn_processes(size, [&](int rank, int) {
    options.rank = rank;
    body(*core::create_gloo(options));
  });
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kInproc: return "inproc";
    case Kind::kShm: return "shm";
    case Kind::kGlooInProcess: return "gloo_in_process";
    case Kind::kGloo: return "gloo";
  }
  return "?";
}

bool forks(Kind kind) { return kind == Kind::kShm || kind == Kind::kGloo; }

std::string cannot_test(Kind kind) {
  if (forks(kind) && kThreadSanitizer) return "the thread sanitizer does not fork";
#ifndef ECHO_TESTING_HAS_GLOO  // with it, a module that does not load is a failure
  if (kind == Kind::kGloo || kind == Kind::kGlooInProcess) return core::gloo_missing().value_or("");
#endif
  return "";
}

void over(Kind kind, int size, const TransportBody& body, int64_t slot_bytes) {
  switch (kind) {
    case Kind::kInproc: return over_inproc(size, body, slot_bytes);
    case Kind::kShm: return over_shm(size, body, slot_bytes);
    case Kind::kGlooInProcess: return over_gloo_in_process(size, body, slot_bytes);
    case Kind::kGloo: return over_gloo(size, body, slot_bytes);
  }
}

TemporaryDirectory::TemporaryDirectory() : path_((std::filesystem::temp_directory_path() / unique_name()).string()) {
  std::filesystem::create_directory(path_);
  std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace echo_comm::testing
