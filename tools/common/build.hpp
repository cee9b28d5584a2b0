// What this tool was built with and which library it runs with.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace echo_comm::tools {

using Json = nlohmann::ordered_json;

struct BuildFacts {
  std::string version;       // of the headers this tool was compiled with
  std::string library;       // version of the loaded library
  std::string library_path;  // file it was loaded from; the tool itself when it is linked statically
  std::string compiler;
  std::string build_type;
};

BuildFacts build_facts();
Json to_json(const BuildFacts& build);

}  // namespace echo_comm::tools
