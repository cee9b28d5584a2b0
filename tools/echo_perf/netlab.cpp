#include "echo_perf/netlab.hpp"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/build.hpp"
#include "common/command_line.hpp"
#include "common/processes.hpp"
#include "common/program.hpp"
#include "echo_perf/plot.hpp"

namespace echo_comm::tools {
namespace {

namespace fs = std::filesystem;

// A folder for what the lab and rank 0 write.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / random_name("echo-perf-lab")) { fs::create_directory(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

std::vector<std::string> lab_command(const Options& options, const Folder& folder) {
  const LabOptions& lab = *options.lab;
  std::vector<std::string> command = {"python3", "-B", lab.folder, "run", "--hosts", std::to_string(options.ranks)};
  command.insert(command.end(), {"--rate", lab.rate, "--flows", std::to_string(lab.flows)});
  command.insert(command.end(), {"--json", folder.file("lab.json"), "--", own_path()});
  command.insert(command.end(), options.repeated.begin(), options.repeated.end());
  command.insert(command.end(), {"--transport", "gloo", "--rank", "{rank}", "--size", "{size}", "--dir", "{dir}"});
  command.insert(command.end(), {"--iface", "{iface}", "--json", folder.file("rows.json")});
  return command;
}

std::optional<Json> read_json(const std::string& path) {
  std::ifstream file(path);
  Json value = Json::parse(file, nullptr, false);
  if (!file.is_open() || value.is_discarded()) return std::nullopt;
  return value;
}

}  // namespace

int run_in_netlab(const Options& options) {
  if (!fs::exists(options.lab->folder + "/__main__.py")) {
    throw UsageError("--netlab: there is no network lab in '" + options.lab->folder +
                     "'; give --netlab-dir or set ECHO_NETLAB to the folder testing/netlab of Echo's sources");
  }
  std::optional<OutputFile> json;
  if (!options.json.empty()) json.emplace(options.json);
  if (!options.plot.empty()) check_plot();
  const Folder folder;
  const int status = run_program(lab_command(options, folder));
  if (status == kExitSkipped) {
    complain("echo-perf", "--netlab: skipped, the network lab cannot run here; see above what it needs");
    return kExitSkipped;
  }
  std::optional<Json> report = read_json(folder.file("rows.json"));
  if (report) {
    (*report)["env"]["netlab"] = read_json(folder.file("lab.json")).value_or(Json());
    const std::string text = report->dump(2) + "\n";
    if (json) json->write(text);
    if (!options.plot.empty()) plot(options.plot, text);
  }
  if (status == kExitOk && !report) throw std::runtime_error("--netlab: rank 0 ended without results");
  if (status == kExitOk || status == kExitFailed || status == kExitUsage) return status;
  complain("echo-perf", "--netlab: the network lab failed with status " + std::to_string(status) +
                            (status == 127 ? "; is python3 there?" : "; see above"));
  return kExitFailed;
}

}  // namespace echo_comm::tools
