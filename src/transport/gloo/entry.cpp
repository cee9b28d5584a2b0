// The module's one entry, and how its two kinds of jobs begin.
#include <algorithm>
#include <exception>
#include <thread>

#include "transport/gloo/module.hpp"
#include "transport/gloo/rendezvous.hpp"
#include "transport/mailbox/duration.hpp"

namespace echo_comm::core {
namespace {

Region region_for(int size, int64_t slot_bytes) {
  require(size >= 1 && size <= kMaxRanks, ErrorCode::kArgument, "size is ", size, ", must be from 1 to ", kMaxRanks);
  return Region(size, slot_bytes != 0 ? slot_bytes : gloo_slot_bytes(size));
}

void check_options(const GlooOptions& options) {
  require(options.rank >= 0 && options.rank < options.size, ErrorCode::kArgument, "gloo: rank is ", options.rank,
          ", must be from 0 to size - 1 = ", options.size - 1);
  require(options.timeout.count() > 0, ErrorCode::kArgument, "gloo: timeout is ", options.timeout.count(),
          " ms, must be positive");
  require(options.interface.empty() || options.host.empty(), ErrorCode::kArgument,
          "gloo: give an interface or a host, not both");
  check_directory(options.directory);
}

// The job to join: any but those that have turned out to be over.
Job await_job(const GlooOptions& options, const std::string& over, const Deadline& deadline) {
  for (;;) {
    const auto job = announced_job(options.directory);
    if (job && job->id != over) return *job;
    require(!deadline.passed(), ErrorCode::kTimeout, "gloo: no ", over.empty() ? "" : "live ", "rank 0 at '",
            options.directory, "' within ", duration_text(options.timeout),
            "; is it running, and does it see the same directory?");
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(deadline.left(), std::chrono::milliseconds(5)));
  }
}

std::unique_ptr<Transport> join(const GlooOptions& options, const Region& region, const NetAddress& address,
                                const Deadline& deadline) {
  std::string over;
  for (;;) {
    const Job job = await_job(options, over, deadline);
    try {
      JobStore store(job_folder(options.directory, job.id));
      const auto is_over = [&] {
        const auto now = announced_job(options.directory);
        return !now || now->id != job.id;
      };
      return meet(
          {options, "'" + options.directory + "'", region, address, job.tokens, store, deadline, is_over, [] {}});
    } catch (const JobIsOver&) {
      over = job.id;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // Gloo's store, in a folder that is being removed
      require(!deadline.passed(), ErrorCode::kSystem, "gloo: '", options.directory, "': ", error.what());
      over = job.id;
    }
  }
}

void create(const GlooOptions& options, std::unique_ptr<Transport>* transport) {
  const Deadline deadline = Deadline::in(options.timeout);
  const Region region = region_for(options.size, options.slot_bytes);
  check_options(options);
  const bool named = !options.host.empty();
  const NetAddress address = choose_address(local_addresses(), options.interface, options.host,
                                            resolve(named ? options.host : own_host_name()));
  if (options.rank != 0) {
    *transport = join(options, region, address, deadline);
    return;
  }
  JobHost host(options.directory);
  JobStore store(job_folder(options.directory, host.job().id));
  *transport = meet({options, "'" + options.directory + "'", region, address, host.job().tokens, store, deadline,
                     [] { return false; }, [&] { host.retire(); }});
}

void create_in_process(int size, int64_t slot_bytes, std::chrono::milliseconds timeout,
                       std::vector<std::unique_ptr<Transport>>* transports) {
  const Deadline deadline = Deadline::in(timeout);
  const Region region = region_for(size, slot_bytes);
  const NetAddress loopback = NetAddress::of("lo", "127.0.0.1");
  const Tokens tokens = Tokens::random();
  ProcessStore store;
  std::vector<std::unique_ptr<Transport>> created(static_cast<std::size_t>(size));
  std::vector<std::exception_ptr> errors(created.size());
  std::vector<std::thread> threads;
  threads.reserve(created.size());
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        GlooOptions options;
        options.rank = rank;
        options.size = size;
        options.timeout = timeout;
        created[static_cast<std::size_t>(rank)] =
            meet({options, "this process", region, loopback, tokens, store, deadline, [] { return false; }, [] {}});
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  *transports = std::move(created);
}

}  // namespace
}  // namespace echo_comm::core

extern "C" __attribute__((visibility("default"))) const echo_comm::core::GlooModule* echo_comm_gloo_module() {
  static constexpr echo_comm::core::GlooModule kModule{.create = echo_comm::core::create,
                                                       .create_in_process = echo_comm::core::create_in_process};
  return &kModule;
}
