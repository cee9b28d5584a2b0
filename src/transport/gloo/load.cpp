// Opens the module at the first use. It is looked for beside the library that this code is in, then where the dynamic
// linker looks (a static Echo has no library of its own).
//
// RTLD_LOCAL: nobody else sees its symbols. RTLD_DEEPBIND: it sees its own Gloo, although the process may have loaded
// another one before, under the same C++ names (torch carries a copy in libtorch_cpu.so). Sanitizers
// refuse DEEPBIND, because it would cut off their malloc.
#include <dlfcn.h>

#include <string>

#include "transport/gloo/module.hpp"

namespace echo_comm::core {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDeepBind = 0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) || __has_feature(thread_sanitizer)
constexpr int kDeepBind = 0;
#else
constexpr int kDeepBind = RTLD_DEEPBIND;
#endif
#else
constexpr int kDeepBind = RTLD_DEEPBIND;
#endif

std::string last_error() {
  const char* error = dlerror();
  return error != nullptr ? error : "unknown error";
}

// Opened once more at each use, never closed: threads of Gloo may be running in it.
void* open_module() {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL | kDeepBind;
  std::string tried;
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&open_module), &here) != 0 && here.dli_fname != nullptr) {
    const std::string library = here.dli_fname;
    const std::size_t slash = library.rfind('/');
    if (slash != std::string::npos) {
      if (void* handle = dlopen((library.substr(0, slash + 1) + kGlooModuleFile).c_str(), kMode)) return handle;
      tried = last_error();
    }
  }
  if (void* handle = dlopen(kGlooModuleFile, kMode)) return handle;
  if (!tried.empty()) tried += "; ";
  tried += last_error();
  fail(ErrorCode::kSystem, "gloo: the module ", kGlooModuleFile, " cannot be loaded (", tried,
       "); it is installed beside libecho_comm.so and needs libgloo (Debian: libgloo0)");
}

const GlooModule& gloo_module() {
  void* handle = open_module();
  void* entry = dlsym(handle, kGlooModuleEntry);
  require(entry != nullptr, ErrorCode::kSystem, "gloo: ", kGlooModuleFile, " is not Echo's module: no ",
          kGlooModuleEntry);
  const GlooModule& loaded = *reinterpret_cast<const GlooModule* (*)()>(entry)();
  require(loaded.version == GlooModule::kVersion, ErrorCode::kSystem, "gloo: ", kGlooModuleFile, " has version ",
          loaded.version, ", this library needs ", GlooModule::kVersion, "; install both from the same build");
  return loaded;
}

}  // namespace

std::unique_ptr<Transport> create_gloo(const GlooOptions& options) {
  std::unique_ptr<Transport> transport;
  gloo_module().create(options, &transport);
  return transport;
}

std::vector<std::unique_ptr<Transport>> create_gloo_in_process(int size, int64_t slot_bytes,
                                                               std::chrono::milliseconds timeout) {
  std::vector<std::unique_ptr<Transport>> transports;
  gloo_module().create_in_process(size, slot_bytes, timeout, &transports);
  return transports;
}

std::optional<std::string> gloo_missing() {
  try {
    gloo_module();
    return std::nullopt;
  } catch (const Error& error) {
    return error.text();
  }
}

}  // namespace echo_comm::core
