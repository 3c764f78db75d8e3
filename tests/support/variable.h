// A variable of this process's environment, set for a while.
#pragma once

#include <cstdlib>
#include <string>

namespace duet_test {

struct Variable {
  Variable(const char* the_name, const std::string& value) : name(the_name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  const char* name;
};

}  // namespace duet_test
