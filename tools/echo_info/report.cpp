#include "echo_info/report.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "echo_comm/echo.hpp"

namespace echo_comm::tools {
namespace {

struct TransportFacts {
  const char* name;
  const char* meaning;
};
constexpr std::array kTransports = {
    TransportFacts{"inproc", "ranks are threads of one process"},
    TransportFacts{"shm", "ranks are processes of this host, shm://NAME?rank=R&size=W"},
    TransportFacts{"gloo", "ranks are joined by TCP, gloo+file:///DIR?rank=R&size=W[&iface=NAME]"},
};

FormatFacts format_of(int bits) {
  echo_range_t range = ECHO_RANGE_INITIALIZER;
  range.count = ECHO_GROUP;
  range.bits = bits;
  range.group_end = 1;
  FormatFacts format{std::string("q").append(std::to_string(bits)), bits, 0};
  check(echo_encoded_size(&range, &format.group_bytes));
  return format;
}

Variable variable(const char* name, const char* otherwise, const char* meaning) {
  const char* value = std::getenv(name);
  const bool set = value != nullptr && *value != '\0';  // the library takes an empty one for unset
  return {name, set ? value : "", set, otherwise, meaning};
}

void line(std::ostream& out, const std::string& key, const std::string& value) {
  out << "  " << key << std::string(key.size() < 22 ? 22 - key.size() : 1, ' ') << value << "\n";
}

void add_doctor(std::ostream& out, const std::vector<Check>& doctor) {
  out << "doctor\n";
  for (const Check& done : doctor) {
    const std::string ok = done.detail.empty() ? "ok" : "ok: " + done.detail;
    line(out, done.name, done.ok() ? ok : "FAILED: " + done.problem);
  }
  const auto failed = std::ranges::count_if(doctor, [](const Check& done) { return !done.ok(); });
  if (failed == 0)
    out << "OK: Echo works on this host.\n";
  else
    out << "FAILED: " << failed << " of " << doctor.size() << " checks; see above what to fix.\n";
}

}  // namespace

Info collect_info() {
  Info info{build_facts(), host_facts(), {}, {}};
  for (const int bits : {3, 4, 5, 6, 8}) info.formats.push_back(format_of(bits));
  info.variables = {
      variable("ECHO_TIMEOUT_MS", "30000", "longest wait of creation and of any call, milliseconds"),
      variable("ECHO_SHM_SLOT_BYTES", "by world size", "bytes of one mailbox slot, equal on all ranks"),
      variable("ECHO_CODEC", "the fastest", "name of the codec to use"),
      variable("ECHO_THREADS", "processors / ranks of this host", "threads that code large calls, 1 to 256"),
      variable("ECHO_TABLE", "built-in rules", "rows of the table of choices, or @FILE with them"),
      variable("ECHO_TUNE", "0", "1: communicators measure their table of choices"),
      variable("ECHO_DEBUG", "0", "1: communicators log to stderr"),
  };
  return info;
}

std::string text_of(const Info& info, const std::vector<Check>* doctor) {
  std::ostringstream out;
  out << "echo_comm " << info.build.version << "\n";
  line(out, "library", info.build.library + ", " + info.build.library_path);
  line(out, "built with", info.build.compiler + ", " + info.build.build_type);

  out << "formats: groups of " << ECHO_GROUP << " values, one bf16 scale each; wire version " << kWireVersion << "\n";
  for (const FormatFacts& format : info.formats) {
    std::ostringstream value;
    value << format.bits << " bits a code, " << format.group_bytes << " bytes a group, "
          << 8.0 * static_cast<double>(format.group_bytes) / ECHO_GROUP << " bits a value";
    line(out, format.name, value.str());
  }
  line(out, "exact", "values travel in the tensor's own type: float, half, bfloat16");

  out << "codecs: all give the same bits, the fastest first\n";
  for (int index = 0; echo_codec_name(index) != nullptr; ++index) {
    const std::string name = echo_codec_name(index);
    line(out, name, name == echo_active_codec() ? "in use" : "can be chosen by ECHO_CODEC");
  }

  out << "transports\n";
  for (const TransportFacts& transport : kTransports) line(out, transport.name, transport.meaning);

  out << "environment\n";
  for (const Variable& entry : info.variables) {
    line(out, entry.name, (entry.set ? entry.value : "unset (" + entry.otherwise + ")") + ": " + entry.meaning);
  }

  out << "host\n";
  line(out, "system", info.host.system);
  line(out, "cpu", info.host.cpu);
  line(out, "cores", std::to_string(info.host.cores) + " usable");
  line(out, "memory", in_words(info.host.memory) + ", " + in_words(info.host.memory_available) + " available");
  line(out, "control group limit", info.host.memory_limit ? in_words(*info.host.memory_limit) : "none");
  std::string features;
  for (const std::string& feature : info.host.features) features += (features.empty() ? "" : " ") + feature;
  line(out, "cpu features", features.empty() ? "unknown" : features);
  line(out, "memfd", info.host.memfd.empty() ? "available" : "not available: " + info.host.memfd);

  if (doctor != nullptr) add_doctor(out, *doctor);
  return out.str();
}

std::string json_of(const Info& info, const std::vector<Check>* doctor) {
  Json report = {{"schema", kSchema}};
  report.update(to_json(info.build));
  report["wire_version"] = kWireVersion;
  report["group"] = ECHO_GROUP;
  for (const FormatFacts& format : info.formats) {
    report["formats"].push_back({{"name", format.name}, {"bits", format.bits}, {"group_bytes", format.group_bytes}});
  }
  report["formats"].push_back({{"name", "exact"}, {"bits", ECHO_BITS_EXACT}, {"group_bytes", nullptr}});
  for (int index = 0; echo_codec_name(index) != nullptr; ++index) report["codecs"].push_back(echo_codec_name(index));
  report["active_codec"] = echo_active_codec();
  for (const TransportFacts& transport : kTransports) report["transports"].push_back(transport.name);
  for (const Variable& entry : info.variables) {
    report["environment"][entry.name] = {
        {"value", entry.set ? Json(entry.value) : Json()}, {"default", entry.otherwise}, {"meaning", entry.meaning}};
  }
  report["host"] = to_json(info.host);
  if (doctor != nullptr) {
    const bool ok = std::ranges::all_of(*doctor, [](const Check& done) { return done.ok(); });
    report["doctor"] = {{"ok", ok}, {"checks", Json::array()}};
    for (const Check& done : *doctor) {
      report["doctor"]["checks"].push_back(
          {{"name", done.name}, {"ok", done.ok()}, {"problem", done.problem}, {"detail", done.detail}});
    }
  }
  // A variable may hold any bytes; those that are no UTF-8 are replaced.
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace echo_comm::tools
