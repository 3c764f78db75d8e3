// A lost heap block on purpose: the leak sanitizer must catch it.
#include <cstdio>
#include <cstdlib>

int main() {
  void* volatile lost = std::malloc(1000);
  std::printf("%d\n", lost != nullptr);
  lost = nullptr;
}
