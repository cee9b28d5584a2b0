#include "api/url.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.hpp"
#include "transport/transport.hpp"

namespace echo_comm::core {
namespace {

constexpr std::string_view kShmScheme = "shm://";
constexpr std::string_view kGlooScheme = "gloo+file://";
constexpr std::size_t kMaxName = 64;

[[noreturn]] void reject(std::string_view url, const std::string& why) {
  fail(ErrorCode::kArgument, "url '", url, "': ", why,
       "; expected shm://NAME?rank=R&size=W or gloo+file:///DIRECTORY?rank=R&size=W[&iface=NAME|&host=ADDRESS]");
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

void check_name(std::string_view url, const std::string& name) {
  if (name.empty() || name.size() > kMaxName || !std::ranges::all_of(name, is_name_character)) {
    reject(url, text("the name must have 1 to ", kMaxName, " characters of A-Z a-z 0-9 . _ -"));
  }
}

void check_directory_name(std::string_view url, const std::string& directory) {
  if (!directory.starts_with('/')) {
    reject(url, text("the directory '", directory, "' must be absolute, with a third slash: gloo+file:///shared/dir"));
  }
  const auto unfit = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '%' || c == '#' || c == 127; };
  if (std::ranges::any_of(directory, unfit)) {
    reject(url, text("the directory '", directory,
                     "' must not have spaces, %, # or control characters; nothing is "
                     "decoded here: use a directory without them"));
  }
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

// One value for each key that the scheme knows.
class Options {
 public:
  Options(std::string_view url, std::string_view query, bool network) : url_(url), network_(network) {
    while (!query.empty()) {
      const std::string_view pair = query.substr(0, query.find('&'));
      query.remove_prefix(std::min(query.size(), pair.size() + 1));
      const std::size_t equals = std::min(pair.find('='), pair.size());
      const std::string_view key = pair.substr(0, equals);
      std::optional<std::string_view>* value = place(key);
      if (value == nullptr) reject(url, text("unknown option '", key, "'"));
      if (value->has_value()) reject(url, text(key, " is given twice"));
      *value = pair.substr(std::min(pair.size(), equals + 1));
    }
  }

  [[nodiscard]] int number(std::string_view key) {
    const auto& value = *place(key);
    if (!value) reject(url_, text(key, " is missing"));
    return parse_number(url_, key, *value);
  }
  [[nodiscard]] std::string name(std::string_view key) {
    const auto* value = place(key);
    if (value == nullptr || !*value) return {};
    const auto unfit = [](char c) { return !is_name_character(c) && c != ':' && c != '@'; };
    if ((*value)->empty() || std::ranges::any_of(**value, unfit))
      reject(url_, text(key, "='", **value, "' is no name"));
    return std::string(**value);
  }

 private:
  std::optional<std::string_view>* place(std::string_view key) {
    if (key == "rank") return &rank_;
    if (key == "size") return &size_;
    if (network_ && key == "iface") return &iface_;
    if (network_ && key == "host") return &host_;
    return nullptr;
  }

  std::string_view url_;
  bool network_;
  std::optional<std::string_view> rank_, size_, iface_, host_;
};

}  // namespace

TransportUrl parse_url(std::string_view url) {
  TransportUrl parsed;
  const bool gloo = url.starts_with(kGlooScheme);
  if (!gloo && !url.starts_with(kShmScheme)) reject(url, "unknown transport");
  const std::string_view rest = url.substr(gloo ? kGlooScheme.size() : kShmScheme.size());
  const std::size_t question = std::min(rest.find('?'), rest.size());
  parsed.kind = gloo ? TransportUrl::Kind::kGlooFile : TransportUrl::Kind::kShm;
  parsed.name = rest.substr(0, question);
  gloo ? check_directory_name(url, parsed.name) : check_name(url, parsed.name);
  Options options(url, rest.substr(std::min(rest.size(), question + 1)), gloo);
  parsed.rank = options.number("rank");
  parsed.size = options.number("size");
  parsed.interface = options.name("iface");
  parsed.host = options.name("host");
  if (parsed.size < 1 || parsed.size > kMaxRanks) reject(url, text("size must be 1 to ", kMaxRanks));
  if (parsed.rank < 0 || parsed.rank >= parsed.size) reject(url, "rank must be 0 to size - 1");
  if (!parsed.interface.empty() && !parsed.host.empty()) reject(url, "iface and host exclude each other");
  return parsed;
}

}  // namespace echo_comm::core
