#include "echo_perf/check_options.hpp"

#include <filesystem>

#include "common/command_line.hpp"
#include "common/element.hpp"
#include "common/host.hpp"
#include "common/network.hpp"
#include "common/processes.hpp"
#include "echo_perf/rival.hpp"

namespace echo_comm::tools {
namespace {

void refuse_if(bool wrong, const std::string& text) {
  if (wrong) throw UsageError(text);
}

void check_collective(const Options& options, const Given& given) {
  const bool gather = options.what == ECHO_ALL_GATHER;
  refuse_if(gather && given.op, "--op: --collective all_gather reduces nothing; leave --op out");
  refuse_if(gather && options.feedback.has_value(),
            "--feedback " + options.feedback_wanted + ": gathered values do not add up to a stream; allowed: none");
  refuse_if(options.what != ECHO_ALL_REDUCE && options.algorithm != ECHO_ALGORITHM_AUTO,
            "--algorithm " + options.algorithm_wanted + ": --collective " + options.collective +
                " has one algorithm; allowed: auto");
}

void check_ranks(const Options& options, const Given& given) {
  const bool network = options.kind == TransportKind::kGloo;
  const bool outside = options.rank >= 0;
  refuse_if(outside && !given.size, "--rank: this rank is one of how many? give --size N, 1 to 64");
  refuse_if(outside && options.directory.empty(),
            "--rank: where do the ranks meet? give --dir DIR, a shared directory");
  refuse_if(!outside && given.size, "--size: it belongs to --rank R; for ranks started here give --ranks N");
  refuse_if(!outside && !options.directory.empty(), "--dir: it belongs to --rank R --size W");
  refuse_if(outside && given.ranks, "--ranks: it excludes --rank; give --size N");
  refuse_if(
      outside && options.rank >= options.ranks,
      "--rank " + std::to_string(options.rank) + ": allowed: 0 to size - 1 = " + std::to_string(options.ranks - 1));
  refuse_if(outside && !network, "--transport " + options.transport + ": with --rank allowed: gloo");
  refuse_if(outside && options.lab, "--netlab: it excludes --rank, the lab starts the ranks");
  refuse_if(options.lab && !network, "--transport " + options.transport + ": with --netlab allowed: gloo");
  refuse_if(options.lab && (options.ranks < 2 || options.ranks > 16),
            "--ranks " + std::to_string(options.ranks) + ": with --netlab allowed: 2 to 16");
  refuse_if(options.lab && !options.interface.empty(), "--iface: the lab chooses the interface; leave --iface out");
  refuse_if(!network && !options.interface.empty(),
            "--iface " + options.interface + ": --transport " + options.transport + " has none; allowed with: gloo");
}

void check_baselines(const Options& options) {
  const bool network = options.kind == TransportKind::kGloo;
  if (options.has(kGloo)) {
    refuse_if(options.what != ECHO_ALL_REDUCE, "--baseline gloo: it is an all-reduce; --collective " +
                                                   options.collective + " allows: exact, stream, none");
    const std::string missing = gloo_rival_missing();
    refuse_if(!missing.empty(), "--baseline gloo: " + missing);
  }
  refuse_if(options.has(kStream) && !network,
            "--baseline stream: --transport " + options.transport + " has no network; allowed: exact, gloo, none");
  refuse_if(options.has(kStream) && options.ranks < 2, "--baseline stream: it needs --ranks 2 or more");
  const bool by_hand = options.rank >= 0 && options.interface.empty();
  refuse_if(by_hand && (options.has(kGloo) || options.has(kStream)),
            "--baseline " + options.baseline + ": with --rank say which interface to use, --iface NAME");
}

// The library says best what is wrong with a table; a process of its own, as it may start threads.
void check_table(const Options& options) {
  if (options.table.empty()) return;
  const std::vector<Outcome> outcomes =
      Processes(1, [&](int) {
        static_cast<void>(Communicator::create_all(1, {.table = options.table.c_str()}));
      }).wait(std::chrono::seconds(10));
  refuse_if(!outcomes[0].passed, "--table: " + outcomes[0].reason());
}

// A job that does not fit would be ended by the kernel in the middle of it.
void check_memory(const Options& options) {
  const double here = options.rank >= 0 ? 1 : options.ranks;
  const double count = static_cast<double>(options.largest()) / static_cast<double>(element_size(options.dtype));
  double needed = 2 * here * static_cast<double>(options.largest());
  if (options.feedback) needed += 4 * count * (here + 1);
  if (options.has(kGloo)) needed += 8 * count * here;
  const std::int64_t available = memory_for_a_job(host_facts());
  if (needed > static_cast<double>(available)) {
    throw UsageError(std::to_string(options.ranks) + " ranks with " +
                     in_words(static_cast<std::int64_t>(options.largest())) + " need " +
                     in_words(static_cast<std::int64_t>(needed)) + " of memory, " + in_words(available) +
                     " are available; take a smaller --maxbytes or fewer --ranks");
  }
}

}  // namespace

void check_together(const Options& options, const Given& given) {
  check_collective(options, given);
  check_ranks(options, given);
  check_baselines(options);
  const bool rows = given.segment || given.depth;
  refuse_if(rows && options.tune, "--segment, --depth: they exclude --tune, which measures a table");
}

void check_here(const Options& options) {
  if (!options.interface.empty()) {
    const std::vector<Interface> all = interfaces();
    const auto at = std::ranges::find_if(all, [&](const Interface& one) { return one.name == options.interface; });
    refuse_if(at == all.end(), "--iface " + options.interface + ": no such interface; there are " + names_of(all));
    refuse_if(!at->address, "--iface " + options.interface + ": it has no address");
  }
  std::error_code ignored;
  refuse_if(!options.directory.empty() && !std::filesystem::is_directory(options.directory, ignored),
            "--dir " + options.directory + ": no such directory; all ranks must see it");
  check_table(options);
  check_memory(options);
}

}  // namespace echo_comm::tools
