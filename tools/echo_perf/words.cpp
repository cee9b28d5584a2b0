#include "echo_perf/words.hpp"
#include "echo_perf/flags.hpp"

#include <charconv>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string_view>

namespace echo_comm::tools {

std::optional<std::int64_t> number_of(std::string_view text) {
  constexpr std::string_view kUnits = "KMG";
  const std::size_t unit = text.empty() ? std::string_view::npos : kUnits.find(text.back());
  if (unit != std::string_view::npos) text.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  const std::int64_t factor = unit == std::string_view::npos ? 1 : std::int64_t{1024} << (10 * unit);
  std::int64_t product = 0;
  if (__builtin_mul_overflow(value, factor, &product)) return std::nullopt;
  return product;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  std::istringstream rest(list);
  for (std::string item; std::getline(rest, item, ',');) items.push_back(item);
  if (list.empty() || list.back() == ',') items.emplace_back();
  return items;
}

CLI::Option* add_numbers(CLI::App& app, const std::string& flags, std::string& list, std::int64_t low,
                         std::int64_t high, const std::string& text) {
  const auto check = [low, high](const std::string& given) {
    return problem_of_list(given, [&](const std::string& item) {
      const std::optional<std::int64_t> value = number_of(item);
      if (value && *value >= low && *value <= high) return std::string();
      return "'" + item + "' is no whole number from " + std::to_string(low) + " to " + std::to_string(high);
    });
  };
  return app.add_option(flags, list, text)->check(check)->type_name("N,...")->capture_default_str();
}

std::vector<std::int64_t> numbers_of(const std::string& list) {
  return meanings<std::int64_t>(list, [](const std::string& item) { return *number_of(item); });
}

}  // namespace echo_comm::tools
