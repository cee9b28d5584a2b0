#include "api/url.hpp"

#include <algorithm>
#include <charconv>

#include "base/error.hpp"
#include "transport/transport.hpp"

namespace echo_comm::core {
namespace {

constexpr std::string_view kScheme = "shm://";
constexpr std::size_t kMaxName = 64;

[[noreturn]] void reject(std::string_view url, const std::string& why) {
  fail(ErrorCode::kArgument, "url '", url, "': ", why, "; expected shm://NAME?rank=R&size=W");
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

int parse_number(std::string_view url, std::string_view key, std::string_view value) {
  int number = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, number);
  if (value.empty() || parsed.ec != std::errc() || parsed.ptr != end) {
    reject(url, text(key, "='", value, "' is not a whole number"));
  }
  return number;
}

}  // namespace

TransportUrl parse_url(std::string_view url) {
  if (!url.starts_with(kScheme)) reject(url, "unknown transport");
  std::string_view rest = url.substr(kScheme.size());
  const std::size_t question = rest.find('?');
  TransportUrl parsed;
  parsed.name = rest.substr(0, question);
  if (parsed.name.empty() || parsed.name.size() > kMaxName || !std::ranges::all_of(parsed.name, is_name_character)) {
    reject(url, text("the name must have 1 to ", kMaxName, " characters of A-Z a-z 0-9 . _ -"));
  }
  bool has_rank = false;
  bool has_size = false;
  rest = question == std::string_view::npos ? std::string_view() : rest.substr(question + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view key = pair.substr(0, equals);
    const std::string_view value = pair.substr(std::min(pair.size(), equals + 1));
    bool* seen = key == "rank" ? &has_rank : key == "size" ? &has_size : nullptr;
    if (seen == nullptr) reject(url, text("unknown option '", key, "'"));
    if (*seen) reject(url, text(key, " is given twice"));
    *seen = true;
    (key == "rank" ? parsed.rank : parsed.size) = parse_number(url, key, value);
  }
  if (!has_rank || !has_size) reject(url, text(has_rank ? "size" : "rank", " is missing"));
  if (parsed.size < 1 || parsed.size > kMaxRanks) reject(url, text("size must be 1 to ", kMaxRanks));
  if (parsed.rank < 0 || parsed.rank >= parsed.size) reject(url, "rank must be 0 to size - 1");
  return parsed;
}

}  // namespace echo_comm::core
