// Lost heap blocks on purpose: the leak sanitizer must catch them.
#include <cstddef>
#include <cstdio>
#include <cstdlib>

int main() {
  // Several: the address of the last one may be left in a register.
  for (std::size_t bytes = 1000; bytes < 1010; ++bytes) {
    void* volatile lost = std::malloc(bytes);
    std::printf("%d\n", lost != nullptr);
    lost = nullptr;
  }
}
