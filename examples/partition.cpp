// DataPartitioner: a data set divided between workers, every worker making the same division on its own.
#include <cstddef>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include <duet/lib/data/partitioner.h>

#include "program.h"

using duet::data::DataPartitioner;
using duet::data::equal_fractions;

namespace {

/// Prints a list as Python does.
template <class Part>
void print(const char* title, const Part& part) {
  std::cout << title << ": [";
  for (std::size_t i = 0; i < part.size(); ++i) std::cout << (i == 0 ? "" : ", ") << part[i];
  std::cout << "]\n";
}

void run() {
  // Any range with size() and operator[] can be divided: here the numbers 1 to 10.
  std::vector<int> items(10);
  std::iota(items.begin(), items.end(), 1);

  // The indices are shuffled as CPython's Random(1234).shuffle does it, so all workers agree without communication.
  const DataPartitioner parts(items, {0.7, 0.2, 0.1});
  print("Training set", parts.use(0));
  print("Validation set", parts.use(1));
  print("Test set", parts.use(2));

  // The tutorial cuts int(fraction * n) items, so three workers lose one of ten. `exact` gives it to the first worker.
  const auto quiet = [](const std::string&) {};
  for (const bool exact : {false, true}) {
    const DataPartitioner thirds(items, equal_fractions(3), {.exact = exact, .warn = quiet});
    std::cout << (exact ? "thirds, exact:" : "thirds, as in the tutorial:");
    for (std::size_t worker = 0; worker < 3; ++worker) std::cout << ' ' << thirds.use(worker).size();
    std::cout << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run(argc, argv, "", [](const examples::Arguments&) { run(); });
}
