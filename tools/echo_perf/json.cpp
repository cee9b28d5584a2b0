#include "echo_perf/report.hpp"

namespace echo_comm::tools {
namespace {

Json measurement_json(const Options& options, const Row& row, Place place) {
  const Measurement& measured = row.places[place];
  const auto checked = [&](const Json& value) { return options.check ? value : Json(); };
  const Json ratio = options.baseline ? Json(measured.ratio()) : Json();
  Json vs = Json::object();
  if (options.baseline) vs["exact"] = measured.ratio();
  return {{"time_us", measured.time.p50},
          {"algbw", algbw(row, place)},
          {"busbw", busbw(row, place, options.ranks)},
          {"payload_bytes", row.payload_bytes},
          {"ratio", ratio},
          {"rel_l2", checked(measured.rel_l2)},
          {"wrong", checked(measured.wrong)},
          {"diverged", checked(measured.diverged)},
          {"percentiles",
           {{"p50", measured.time.p50},
            {"p95", measured.time.p95},
            {"p99", measured.time.p99},
            {"min", measured.time.min},
            {"max", measured.time.max}}},
          {"vs", vs}};
}

}  // namespace

// A row holds the out-of-place figures, and the in-place ones of the same names in "in_place".
std::string json_of(const Options& options, const Environment& environment, const std::vector<Row>& rows) {
  Json env = to_json(environment.build);
  env["time"] = environment.time;
  env["host"] = to_json(environment.host);
  env["options"] = {{"iters", options.iters},
                    {"warmup_iters", options.warmup_iters},
                    {"check", options.check},
                    {"op", options.redop},
                    {"feedback", options.feedback ? "on" : "none"},
                    {"baseline", options.baseline ? "exact" : "none"},
                    {"algorithm", options.algorithm_wanted},
                    {"timeout_s", options.timeout_s}};
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
                  {"algorithm", row.algorithm()}};
    entry.update(measurement_json(options, row, kOutOfPlace));
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
