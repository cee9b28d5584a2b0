#include "common/exchange.hpp"

namespace echo_comm::tools {

std::vector<std::string> Exchange::gather_text(const std::string& own) const {
  const std::vector<std::uint64_t> lengths = gather<std::uint64_t>(own.size());
  const std::uint64_t longest = *std::ranges::max_element(lengths);
  std::vector<std::uint32_t> words((longest + 3) / 4);
  std::copy(own.begin(), own.end(), reinterpret_cast<char*>(words.data()));
  const std::vector<std::uint32_t> all = gather<std::uint32_t>(std::span<const std::uint32_t>(words));
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data() + rank * words.size()), lengths[rank]);
  }
  return texts;
}

}  // namespace echo_comm::tools
