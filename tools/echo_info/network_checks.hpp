// What the doctor's checks of networks are made of.
#pragma once

#include <string>

#include "common/network.hpp"

namespace echo_comm::tools {

// Whether the library that is loaded can use Gloo at all; its module may still be missing.
bool gloo_built_in();

// "; built with Gloo 0.5.0", "" when this tool was built without its headers.
std::string gloo_headers();

// Files mapped into this process whose names hold the word, one after the other.
std::string loaded_files(const std::string& word);

// "", or why a port of the address cannot be listened on, or not be reached from here.
std::string listen_problem(const SocketAddress& address);

// A folder of this user alone, gone at the end, with one file in it through which a child answers.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  [[nodiscard]] const std::string& path() const { return path_; }
  void write(const std::string& answer) const;
  [[nodiscard]] std::string read() const;  // "" when there is no answer

 private:
  std::string path_;
};

}  // namespace echo_comm::tools
