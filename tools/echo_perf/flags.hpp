// The same as options of a CLI::App.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "echo_perf/words.hpp"

namespace echo_comm::tools {

template <class T>
CLI::Option* add_word(CLI::App& app, const std::string& flags, std::string& word, const Words<T>& words,
                      const std::string& text) {
  const auto check = [&words](const std::string& given) { return problem_of(words, given); };
  return app.add_option(flags, word, text)->check(check)->type_name(choices_of(words))->capture_default_str();
}

// An option of comma-separated words; `list` holds its default.
template <class T>
CLI::Option* add_words(CLI::App& app, const std::string& flags, std::string& list, const Words<T>& words,
                       const std::string& text) {
  const auto check = [&words](const std::string& given) {
    return problem_of_list(given, [&](const std::string& item) { return problem_of(words, item); });
  };
  return app.add_option(flags, list, text)->check(check)->type_name(choices_of(words))->capture_default_str();
}

// An option of comma-separated whole numbers from `low` to `high`; 4K is 4096.
CLI::Option* add_numbers(CLI::App& app, const std::string& flags, std::string& list, std::int64_t low,
                         std::int64_t high, const std::string& text);

}  // namespace echo_comm::tools
