#include "common/command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>

namespace echo_comm::tools {

std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& asked) {
    const int code = app.exit(asked, std::cout, std::cerr);  // --help, --version
    flush_stdout();
    return code;
  } catch (const CLI::ParseError& error) {
    complain(app.get_name(), std::string(error.what()) + " (see --help)");
    return kExitUsage;
  }
}

void complain(const std::string& tool, const std::string& text) {
  std::string line = tool + ": " + text;
  std::ranges::replace(line, '\n', ' ');
  while (line.ends_with(' ')) line.pop_back();
  line += '\n';
  std::fputs(line.c_str(), stderr);
}

OutputFile::OutputFile(const std::string& path) : path_(path), file_(path) {
  if (!file_) throw UsageError("cannot write '" + path + "'");
}

void OutputFile::write(const std::string& text) {
  file_ << text << std::flush;
  if (!file_) throw std::runtime_error("writing '" + path_ + "' failed; is the disk full?");
}

void flush_stdout() {
  std::cout.flush();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout) {
    throw std::runtime_error("writing to standard output failed");
  }
}

}  // namespace echo_comm::tools
