#include <nlohmann/json.hpp>
#include "echo_perf/report.hpp"

namespace echo_comm::tools {
namespace {

Json times_json(const Times& times) {
  return {{"p50", times.p50}, {"p90", times.p90}, {"p99", times.p99}, {"min", times.min}, {"max", times.max}};
}

Json measurement_json(const Options& options, const Row& row, Place place) {
  const Measurement& measured = row.places[place];
  const auto checked = [&](const Json& value) { return options.check ? value : Json(); };
  Json vs = Json::object();
  Json baselines = Json::object();
  for (const Contender baseline : options.baselines) {
    vs[word_for(kBaselines, baseline)] = measured.vs[baseline];
    baselines[word_for(kBaselines, baseline)] = times_json(measured.times[baseline]);
  }
  return {{"time_us", measured.time().p50},
          {"algbw", algbw(row, place)},
          {"busbw", busbw(options, row, place)},
          {"payload_bytes", row.payload_bytes},
          {"interface_bytes", row.interface_bytes >= 0 ? Json(row.interface_bytes) : Json()},
          {"ratio", options.baselines.empty() ? Json() : Json(measured.vs[options.baselines.front()])},
          {"rel_l2", checked(measured.rel_l2)},
          {"wrong", checked(measured.wrong)},
          {"diverged", checked(measured.diverged)},
          {"percentiles", times_json(measured.time())},
          {"baseline_percentiles", baselines},
          {"exact_efficiency", measured.exact_efficiency > 0 ? Json(measured.exact_efficiency) : Json()},
          {"vs", vs}};
}

Json path_json(const PathFacts& path) {
  return {{"kind", path.kind_word()}, {"algorithm", path.algorithm_word()},
          {"bits", path.bits},        {"segment_values", path.segment_values},
          {"depth", path.depth},      {"reason", path.reason.data()}};
}

Json options_json(const Options& options) {
  return {{"iters", options.iters},
          {"warmup_iters", options.warmup_iters},
          {"check", options.check},
          {"op", options.redop},
          {"feedback", options.feedback_wanted},
          {"baseline", options.baseline},
          {"algorithm", options.algorithm_wanted},
          {"tune", options.tune},
          {"interface", options.interface.empty() ? Json() : Json(options.interface)},
          {"timeout_s", options.timeout_s}};
}

}  // namespace

// A row holds the out-of-place figures, and the in-place ones of the same names in "in_place".
std::string json_of(const Options& options, const Environment& environment, const std::string& table,
                    const std::vector<Row>& rows) {
  Json env = to_json(environment.build);
  env["time"] = environment.time;
  env["host"] = to_json(environment.host);
  env["options"] = options_json(options);
  env["table"] = table;
  env["notes"] = environment.notes;

  Json list = Json::array();
  for (const Row& row : rows) {
    Json entry = {{"transport", options.transport},
                  {"collective", options.collective},
                  {"ranks", options.ranks},
                  {"bytes", row.bytes},
                  {"count", row.count},
                  {"type", options.datatype},
                  {"codec", options.codec},
                  {"algorithm", row.path.algorithm_word()}};
    entry.update(measurement_json(options, row, kOutOfPlace));
    entry["path"] = path_json(row.path);
    entry["in_place"] = measurement_json(options, row, kInPlace);
    list.push_back(entry);
  }

  const Summary summary(rows, options);
  const Json break_even = summary.break_even != 0 ? Json(summary.break_even) : Json();
  const Json report = {{"schema", kSchema},
                       {"env", env},
                       {"rows", list},
                       {"summary", {{"average_busbw", summary.average_busbw}, {"break_even_bytes", break_even}}}};
  return report.dump(2) + "\n";
}

}  // namespace echo_comm::tools
