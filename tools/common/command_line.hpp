// What both tools share of their command lines: exit codes, one line per error, files to write.
#pragma once

#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

namespace CLI {
class App;
}

namespace echo_comm::tools {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // a check failed, a rank failed, output could not be written
inline constexpr int kExitUsage = 2;

// The command line asks for something that cannot be done.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Parses argv. Gives an exit code when the program is to end at once: after --help or --version (printed to stdout),
// or after an error (one line on stderr).
std::optional<int> parse(CLI::App& app, int argc, const char* const* argv);

// Prints "TOOL: text" to stderr, in one line whatever the text holds.
void complain(const std::string& tool, const std::string& text);

// Opens the file for writing at once, so that a path that cannot be written is found before the work is done.
class OutputFile {
 public:
  // Throws UsageError.
  explicit OutputFile(const std::string& path);
  // Throws std::runtime_error when the bytes did not arrive.
  void write(const std::string& text);

 private:
  std::string path_;
  std::ofstream file_;
};

// Flushes stdout. Throws std::runtime_error when it could not take everything that was printed.
void flush_stdout();

}  // namespace echo_comm::tools
