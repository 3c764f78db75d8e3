// A signed overflow on purpose: the undefined behaviour sanitizer must catch it and end the program.
#include <cstdio>
#include <limits>

int main(int argc, char**) {
  int largest = std::numeric_limits<int>::max();
  largest += argc;
  std::printf("%d\n", largest);
}
