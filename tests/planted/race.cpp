// A data race on purpose: the thread sanitizer's job must catch it (meson.build runs this only under that sanitizer).
#include <cstdio>
#include <thread>

int main() {
  int counter = 0;
  std::thread other([&] { ++counter; });
  ++counter;
  other.join();
  std::printf("%d\n", counter);
}
