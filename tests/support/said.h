// What the program prints to std::cerr while this lives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <sstream>
#include <streambuf>
#include <string>

namespace duet_test {

class Said {
 public:
  Said() : usual_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~Said() { std::cerr.rdbuf(usual_); }
  Said(const Said&) = delete;
  Said& operator=(const Said&) = delete;
  std::string text() const { return text_.str(); }
  std::ptrdiff_t lines() const { return std::ranges::count(text_.str(), '\n'); }

 private:
  std::ostringstream text_;
  std::streambuf* usual_;
};

}  // namespace duet_test
