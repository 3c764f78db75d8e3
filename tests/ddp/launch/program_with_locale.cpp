// A program that has set a locale: its ranks meet, exchange and divide as without one.
#include <clocale>
#include <exception>
#include <locale>
#include <span>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "ddp/rank_threads.h"
#include "lib/error.h"
#include "tests/support/german.h"

namespace {

void use(duet::ddp::ProcessGroup& group) {
  std::vector<double> numbers = {1000.5};
  group.all_reduce(std::span<double>(numbers)).wait();
  duet::require(numbers[0] == 2001, "the sum is ", numbers[0], ", expected 2001");
  const auto divided = group.split(12'345, 1'000'000 - group.rank());  // in the opposite order
  duet::require(divided->size() == 2 && divided->rank() == 1 - group.rank(), "rank ", group.rank(), " is rank ",
                divided->rank(), " of ", divided->size());
  group.barrier().wait();  // rank 0 has the store, which the others may still ask
}

}  // namespace

int main() {
  std::setlocale(LC_ALL, "de_DE.UTF-8");  // where it is installed
  std::locale::global(std::locale(std::locale::classic(), new duet_test::German));
  const std::string text = duet::concat(300'000, " ", 0.5);
  try {
    duet::require(text == "300000 0.5", "a text is ", text);
    if (!duet::ddp::is_launched_rank()) duet::ddp::run_rank_threads(2, use);
    return duet::ddp::spawn([](int) { use(*duet::ddp::init_process_group()); }, 2);
  } catch (const std::exception& error) {
    return duet::ddp::report_failure(error);
  }
}
