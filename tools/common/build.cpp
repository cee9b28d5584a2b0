#include "common/build.hpp"

#include <dlfcn.h>
#include <nlohmann/json.hpp>

#include "echo_comm/echo.h"

namespace echo_comm::tools {

BuildFacts build_facts() {
  BuildFacts build;
  build.version = ECHO_VERSION_STRING;
  const int version = echo_version();
  build.library =
      std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&echo_version), &info) != 0 && info.dli_fname != nullptr) {
    build.library_path = info.dli_fname;
  }
#if defined(__clang__)
  build.compiler = std::string("clang ") + __clang_version__;
#else
  build.compiler = std::string("gcc ") + __VERSION__;
#endif
  while (build.compiler.ends_with(' ')) build.compiler.pop_back();
  build.build_type = ECHO_BUILD_TYPE;
  if (build.build_type.empty()) build.build_type = "none";
  return build;
}

Json to_json(const BuildFacts& build) {
  return {{"version", build.version},
          {"library_version", build.library},
          {"library_path", build.library_path},
          {"compiler", build.compiler},
          {"build_type", build.build_type}};
}

}  // namespace echo_comm::tools
