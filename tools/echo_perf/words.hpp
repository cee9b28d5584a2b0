// Options whose values are words: one of a few, or a comma list of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace echo_comm::tools {

// A word of the command line and what it stands for.
template <class T>
using Words = std::vector<std::pair<std::string, T>>;

template <class T>
std::string choices_of(const Words<T>& words) {
  std::string choices;
  for (const auto& [name, value] : words) choices += (choices.empty() ? "" : "|") + name;
  return choices;
}

// "" or what is wrong with `word`.
template <class T>
std::string problem_of(const Words<T>& words, const std::string& word) {
  const bool known = std::ranges::any_of(words, [&](const auto& entry) { return entry.first == word; });
  return known ? std::string() : "'" + word + "' is none of " + choices_of(words);
}

template <class T>
T meaning(const Words<T>& words, const std::string& word) {
  return std::ranges::find_if(words, [&](const auto& entry) { return entry.first == word; })->second;
}

template <class T>
const std::string& word_for(const Words<T>& words, const T& value) {
  return std::ranges::find_if(words, [&](const auto& entry) { return entry.second == value; })->first;
}

// ---- comma lists ----------------------------------------------------------------------------------------------------

// "a,b" -> {"a", "b"}; "" -> {""}.
std::vector<std::string> split(const std::string& list);

// The first problem that `problem` finds in an item of the list, or "".
template <class Problem>
std::string problem_of_list(const std::string& list, Problem&& problem) {
  for (const std::string& item : split(list)) {
    if (const std::string text = problem(item); !text.empty()) return text;
  }
  return "";
}

// What the items of the list mean, each once.
template <class T, class Meaning>
std::vector<T> meanings(const std::string& list, Meaning&& meaning) {
  std::vector<T> values;
  for (const std::string& item : split(list)) {
    const T value = meaning(item);
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  return values;
}

template <class T>
std::vector<T> meanings(const Words<T>& words, const std::string& list) {
  return meanings<T>(list, [&](const std::string& item) { return meaning(words, item); });
}

// Digits, then nothing or one of K, M, G.
std::optional<std::int64_t> number_of(std::string_view text);

std::vector<std::int64_t> numbers_of(const std::string& list);

}  // namespace echo_comm::tools
