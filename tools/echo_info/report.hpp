// What echo-info tells: versions, formats, transports, environment variables, this host.
#pragma once

#include <string>
#include <vector>

#include "common/build.hpp"
#include "common/host.hpp"
#include "echo_info/doctor.hpp"

namespace echo_comm::tools {

inline constexpr int kSchema = 1;       // of the JSON form
inline constexpr int kWireVersion = 1;  // of the message header, src/wire/FORMAT.md

struct FormatFacts {
  std::string name;  // q4
  int bits = 0;
  std::size_t group_bytes = 0;  // codes and scale of 64 values
};

struct Variable {
  std::string name;
  std::string value;  // "" when it is not set
  bool set = false;
  std::string otherwise;  // what happens when it is not set
  std::string meaning;
};

struct Info {
  BuildFacts build;
  HostFacts host;
  std::vector<FormatFacts> formats;  // the coded ones; the exact path has no groups
  std::vector<Variable> variables;   // all that the C++ library reads
};

Info collect_info();

// doctor: the checks, or NULL when they were not asked for.
std::string text_of(const Info& info, const std::vector<Check>* doctor);
std::string json_of(const Info& info, const std::vector<Check>* doctor);

}  // namespace echo_comm::tools
