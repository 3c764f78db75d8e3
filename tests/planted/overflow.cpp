// A read past the end of a heap block on purpose: the address sanitizer must catch it.
#include <cstdio>
#include <memory>

int main(int argc, char**) {
  const auto block = std::make_unique<int[]>(4);
  std::printf("%d\n", block[static_cast<std::size_t>(argc + 3)]);
}
