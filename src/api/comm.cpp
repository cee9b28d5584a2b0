#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "api/handles.hpp"
#include "api/url.hpp"
#include "base/env.hpp"
#include "codec/dispatch.hpp"
#include "transport/gloo/gloo.hpp"
#include "transport/inproc/inproc.hpp"
#include "transport/shm/shm.hpp"

namespace echo_comm::core {
namespace {

// Of "under 3 s" some is left for the end of the last measurement.
constexpr std::chrono::milliseconds kTuningTime{2'500};

struct CommSettings {
  Settings settings;
  int64_t slot_bytes;
  bool tune;
  echo_log_fn log;
  void* log_context;
};

void log_to_stderr(echo_log_level_t /*level*/, const char* line, void* /*context*/) {
  std::fputs(text("echo_comm: ", line, "\n").c_str(), stderr);
}

// Rows, or @FILE with rows in it.
Table read_table(const std::string& given) {
  if (given.empty() || given[0] != '@') return Table::parse(given);
  const std::string path = given.substr(1);
  std::ifstream file(path);
  const std::string rows{std::istreambuf_iterator<char>(file), {}};
  require(file.is_open() && !file.bad(), ErrorCode::kArgument, "table: cannot read the file '", path, "'");
  return Table::parse(rows);
}

CommSettings read_config(const echo_config_t* given) {
  const echo_config_t config = read_struct(given, echo_config_t ECHO_CONFIG_INITIALIZER, "config");
  const Env env = Env::read();
  constexpr int64_t kDay = 86'400'000;
  require(config.timeout_ms >= 0 && config.timeout_ms <= kDay, ErrorCode::kArgument, "timeout_ms: ", config.timeout_ms,
          "; expected 0 (default) to ", kDay);
  constexpr int64_t kMinSlot = 4096;
  constexpr int64_t kMaxSlot = 64 << 20;
  require(config.slot_bytes == 0 || (config.slot_bytes >= kMinSlot && config.slot_bytes <= kMaxSlot),
          ErrorCode::kArgument, "slot_bytes: ", config.slot_bytes, "; expected 0 (default) or ", kMinSlot, " to ",
          kMaxSlot);
  constexpr int kMostThreads = 256;
  require(config.threads >= 0 && config.threads <= kMostThreads, ErrorCode::kArgument, "threads: ", config.threads,
          "; expected 0 (default) to ", kMostThreads);
  CommSettings result;
  result.settings.timeout = std::chrono::milliseconds(config.timeout_ms != 0 ? config.timeout_ms : env.timeout_ms);
  result.settings.batch_invariant = read_switch(config.batch_invariant, false, "batch_invariant");
  result.settings.threads = config.threads != 0 ? config.threads : static_cast<int>(env.threads);
  result.settings.table = read_table(config.table != nullptr ? config.table : env.table);
  result.tune = read_switch(config.tune, env.tune, "tune");
  result.slot_bytes = config.slot_bytes != 0 ? config.slot_bytes : env.slot_bytes;
  result.log = config.log != nullptr ? config.log : env.debug ? log_to_stderr : nullptr;
  result.log_context = config.log_context;
  return result;
}

// Everything that must be equal on all ranks and is not in each message's header.
uint64_t fingerprint(const Settings& settings) {
  return uint64_t{MessageHeader::kVersion} << 8 | (settings.batch_invariant ? 1U : 0U);
}

std::unique_ptr<echo_comm_object> make_comm(std::unique_ptr<Transport> transport, const CommSettings& settings) {
  Settings own = settings.settings;
  // All ranks of memory transports are on this host; of a network one, nobody knows.
  const int neighbours = transport->is_network() ? 1 : transport->size();
  if (own.threads == 0) own.threads = std::max(1, usable_processors() / neighbours);
  // The object neither moves nor copies, and make_unique cannot brace. NOLINTNEXTLINE(modernize-make-unique)
  return std::unique_ptr<echo_comm_object>(
      new echo_comm_object{Communicator(std::move(transport), std::move(own)), std::string()});
}

std::unique_ptr<Transport> create_transport(const TransportUrl& target, const CommSettings& settings) {
  if (target.kind == TransportUrl::Kind::kGlooFile) {
    return create_gloo({.directory = target.name,
                        .interface = target.interface,
                        .host = target.host,
                        .rank = target.rank,
                        .size = target.size,
                        .slot_bytes = settings.slot_bytes,
                        .settings = fingerprint(settings.settings),
                        .timeout = settings.settings.timeout});
  }
  return create_shm({.name = target.name,
                     .rank = target.rank,
                     .size = target.size,
                     .slot_bytes = settings.slot_bytes,
                     .settings = fingerprint(settings.settings),
                     .timeout = settings.settings.timeout});
}

void log_line(const CommSettings& settings, echo_log_level_t level, const std::string& line) {
  if (settings.log != nullptr) settings.log(level, line.c_str(), settings.log_context);
}

void log_creation(const Communicator& communicator, const CommSettings& settings) {
  const Transport& joined = communicator.transport();
  std::string table = communicator.table().to_text();
  std::ranges::replace(table, '\n', ';');
  log_line(settings, ECHO_LOG_INFO,
           text("version ", ECHO_VERSION_STRING, ", transport ", joined.name(),
                joined.address().empty() ? "" : text(" at ", joined.address()), ", rank ", joined.rank(), " of ",
                joined.size(), ", messages up to ", joined.max_message(), " bytes, ", joined.shared_bytes(),
                " bytes shared, codec ", active_codec().name(), " on ", communicator.threads(), " threads, timeout ",
                settings.settings.timeout.count(), " ms, batch invariant ",
                settings.settings.batch_invariant ? "on" : "off", ", table ", table.empty() ? "built in" : table));
}

// All ranks together: one table, measured if rank 0 says so.
void agree(Communicator& communicator, const CommSettings& settings) {
  bool tune = settings.tune;
  if (!communicator.agree(tune)) {
    log_line(settings, ECHO_LOG_WARNING, "this rank's table or tune differs from that of rank 0, which counts");
  }
  if (tune) communicator.tune(kTuningTime);
}

// The ranks of inproc share their settings; a measurement needs them all at the same time.
void tune_all(const std::vector<std::unique_ptr<echo_comm_object>>& comms) {
  std::vector<std::exception_ptr> errors(comms.size());
  std::vector<std::thread> threads;
  threads.reserve(comms.size());
  for (std::size_t rank = 0; rank < comms.size(); ++rank) {
    threads.emplace_back([&comm = *comms[rank], &error = errors[rank]] {
      try {
        comm.communicator.tune(kTuningTime);
      } catch (...) {
        error = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace
}  // namespace echo_comm::core

echo_result_t echo_comm_create(const char* url, const echo_config_t* config, echo_comm_t* comm) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(comm != nullptr, ErrorCode::kArgument, "comm is NULL");
    *comm = nullptr;
    require(url != nullptr, ErrorCode::kArgument, "url is NULL");
    const TransportUrl target = parse_url(url);
    const CommSettings settings = read_config(config);
    std::unique_ptr<echo_comm_object> created = make_comm(create_transport(target, settings), settings);
    agree(created->communicator, settings);
    log_creation(created->communicator, settings);
    *comm = created.release();
  });
}

echo_result_t echo_comm_create_all(int size, const echo_config_t* config, echo_comm_t* comms) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(comms != nullptr, ErrorCode::kArgument, "comms is NULL");
    require(size >= 1 && size <= kMaxRanks, ErrorCode::kArgument, "size: ", size, "; expected 1 to ", kMaxRanks);
    const CommSettings settings = read_config(config);
    std::vector<std::unique_ptr<echo_comm_object>> created;
    for (std::unique_ptr<Transport>& transport : create_inproc(size, settings.slot_bytes)) {
      created.push_back(make_comm(std::move(transport), settings));
    }
    if (settings.tune) tune_all(created);
    for (const auto& one : created) log_creation(one->communicator, settings);
    for (int rank = 0; rank < size; ++rank) comms[rank] = created[rank].release();
  });
}

int echo_comm_rank(echo_comm_t comm) { return comm == nullptr ? -1 : comm->communicator.rank(); }

int echo_comm_size(echo_comm_t comm) { return comm == nullptr ? -1 : comm->communicator.size(); }

const char* echo_comm_transport(echo_comm_t comm) {
  return comm == nullptr ? "" : comm->communicator.transport().name();
}

echo_result_t echo_comm_abort(echo_comm_t comm, const char* reason) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(comm != nullptr, ErrorCode::kArgument, "comm is NULL");
    comm->communicator.abort(text("aborted: ", reason != nullptr ? reason : "no reason was given"));
  });
}

void echo_comm_destroy(echo_comm_t comm) { delete comm; }

echo_result_t echo_comm_stats(echo_comm_t comm, echo_stats_t* stats) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(comm != nullptr, ErrorCode::kArgument, "comm is NULL");
    require(stats != nullptr && stats->size >= sizeof(std::size_t), ErrorCode::kArgument,
            "stats is NULL or not filled by ECHO_STATS_INITIALIZER");
    const Counters counters = comm->communicator.counters();
    const WaitStats waits = comm->communicator.wait_stats();
    echo_stats_t all ECHO_STATS_INITIALIZER;
    all.coded_calls = counters.coded_calls;
    all.exact_calls = counters.exact_calls;
    all.passed_calls = counters.passed_calls;
    all.table_exact_calls = counters.table_exact_calls;
    all.control_calls = counters.control_calls;
    all.calls = all.coded_calls + all.exact_calls + all.passed_calls;
    all.one_shot_calls = counters.one_shot_calls;
    all.flush_calls = counters.flush_calls;
    all.logical_bytes = counters.logical_bytes;
    all.payload_bytes = counters.payload_bytes;
    all.messages = counters.messages;
    all.poisoned_groups = counters.poisoned_groups;
    all.waits = waits.waits;
    all.wait_ns = waits.wait_ns;
    all.shm_bytes = comm->communicator.transport().shared_bytes();
    all.threads = static_cast<uint64_t>(comm->communicator.threads());
    // A caller with an older header has a shorter struct: it gets the fields it knows.
    const std::size_t size = std::min(stats->size, sizeof all);
    all.size = stats->size;
    __builtin_memcpy(stats, &all, size);
  });
}
