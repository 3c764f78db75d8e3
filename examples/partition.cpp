// DataPartitioner: a data set divided between workers, every worker making the same division on its own.
#include <exception>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "lib/data/partitioner.h"

using duet::data::DataPartitioner;
using duet::data::equal_fractions;

int main() try {
  // Any range with size() and operator[] can be divided: here the numbers 100..109.
  std::vector<int> items(10);
  std::iota(items.begin(), items.end(), 100);

  // The indices are shuffled as CPython's Random(1234).shuffle does it, so all workers agree without talking.
  const DataPartitioner parts(items, {0.7, 0.2, 0.1});
  for (std::size_t worker = 0; worker < parts.parts(); ++worker) {
    const auto part = parts.use(worker);
    std::cout << "worker " << worker << " has " << part.size() << ":";
    for (std::size_t i = 0; i < part.size(); ++i) std::cout << ' ' << part[i];
    std::cout << '\n';
  }

  // The tutorial cuts int(fraction * n) items, so three workers lose one of ten. Nobody meant that: `exact` gives it to
  // the first worker.
  const auto quiet = [](const std::string&) {};
  for (const bool exact : {false, true}) {
    const DataPartitioner thirds(items, equal_fractions(3), {.exact = exact, .warn = quiet});
    std::cout << (exact ? "thirds, exact:" : "thirds, as in the tutorial:");
    for (std::size_t worker = 0; worker < 3; ++worker) std::cout << ' ' << thirds.use(worker).size();
    std::cout << '\n';
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
