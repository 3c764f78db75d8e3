// The command line of an example, and its error handling.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <duet/ddp/launch/error_file.h>
#include <duet/lib/error.h>

namespace examples {

class Arguments {
 public:
  explicit Arguments(std::vector<std::string> words) : words_(std::move(words)) {}

  /// The argument at `place`, from 0; empty if there are not so many.
  std::string text(std::size_t place) const { return place < words_.size() ? words_[place] : std::string(); }
  /// Throws UsageError unless the argument, if there is one, is a whole number from 1 to `most`.
  std::int64_t number(std::size_t place, std::int64_t otherwise, std::int64_t most) const {
    if (place >= words_.size()) return otherwise;
    const std::string& word = words_[place];
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool whole = error == std::errc() && end == word.data() + word.size();
    duet::require<duet::UsageError>(whole && value >= 1 && value <= most, "got '", word,
                                    "', expected a whole number from 1 to ", most);
    return value;
  }

 private:
  std::vector<std::string> words_;
};

/// Calls `body` with the program's arguments: at most as many as `usage` names, each in brackets, as in "[DATA
/// [IMAGES]]". Returns the exit status: what `body` returns, if anything; 2 after a wrong command line and 1 after
/// another error, with one line on stderr.
template <class Body>
int run(int argc, char** argv, const std::string& usage, const Body& body) {
  const std::string name = std::filesystem::path(argv[0]).filename();
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    for (const std::string& word : words) {
      if (word == "--help" || word == "-h") {
        std::cout << "usage: " << name << ' ' << usage << std::endl;
        return 0;
      }
      duet::require<duet::UsageError>(!word.starts_with('-'), "unknown option ", word, ", see --help");
    }
    const auto most = static_cast<std::size_t>(std::count(usage.begin(), usage.end(), '['));
    duet::require<duet::UsageError>(words.size() <= most, "got ", words.size(), " arguments, expected at most ", most);
    if constexpr (std::is_void_v<std::invoke_result_t<Body, Arguments>>)
      body(Arguments(words));
    else
      return body(Arguments(words));
    return 0;
  } catch (const std::exception& error) {
    return duet::ddp::report_failure(error, (name + ": ").c_str());
  }
}

}  // namespace examples
