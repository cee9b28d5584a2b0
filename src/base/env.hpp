// Every environment variable the C++ library reads, in one place. Read once, when a communicator is created.
#pragma once

#include <cstdint>
#include <string>

namespace echo_comm::core {

struct Env {
  // ECHO_TIMEOUT_MS: longest wait of creation and of any call. 1 .. 86,400,000. Default 30,000.
  int64_t timeout_ms = 30'000;
  // ECHO_SHM_SLOT_BYTES: bytes of one mailbox slot, 4 KiB .. 64 MiB; equal on all ranks. 0: by world size.
  int64_t slot_bytes = 0;
  // ECHO_CODEC: name of the codec to use (echo_codec_name lists them). Empty: the fastest this processor can run.
  std::string codec;
  // ECHO_THREADS: threads that code large calls, 1 .. 256; each rank's own choice. 0: the processors this process may
  // use, shared among the ranks of this host.
  int64_t threads = 0;
  // ECHO_TABLE: rows of the table of choices (docs/tuning.md), or @FILE with them. Rank 0's counts. Empty: built in.
  std::string table;
  // ECHO_TUNE: 1 measures the table when a communicator is created; equal on all ranks. Default 0.
  bool tune = false;
  // ECHO_DEBUG: 1 prints the log lines of communicators without a log callback to stderr. Default 0.
  bool debug = false;

  // Throws Error(kArgument) naming the variable and its range when a value is no number or out of range.
  static Env read();
};

}  // namespace echo_comm::core
