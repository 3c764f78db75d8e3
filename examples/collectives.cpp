// The six collectives between four ranks. Every rank calls each of them, in the same order.
#include <iostream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <duet/ddp/init.h>
#include <duet/ddp/launch/launch.h>

#include "in_order.h"
#include "program.h"

using namespace duet;

namespace {

constexpr int kRanks = 4;
constexpr int kRoot = 0;

using Floats = std::vector<float>;

std::string text(int rank, const Floats& values) {
  std::ostringstream line;
  line << "Rank  " << rank << "  has data  [";
  for (std::size_t i = 0; i < values.size(); ++i) line << (i == 0 ? "" : ", ") << values[i];
  line << ']';
  return line.str();
}

void run(int rank) {
  // Found through the variables that the launcher has set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
  const auto group = ddp::init_process_group();
  const auto own = static_cast<float>(rank + 1);
  const auto show = [&](const char* title, const Floats& values) {
    if (rank == 0) std::cout << title << std::endl;
    examples::print_in_order(*group, text(rank, values));
  };

  // Each call starts the operation in the background; wait() returns when it has ended.
  Floats values = {own, own};
  group->broadcast(std::span(values), kRoot).wait();
  show("broadcast: every rank has what rank 0 had", values);

  values = {own, own};
  group->all_reduce(std::span(values)).wait();
  show("all_reduce: every rank has the sum", values);

  values = {own, own};
  group->reduce(std::span(values), kRoot).wait();
  show("reduce: rank 0 has the sum, the others keep what they had", values);

  values = {own};
  Floats all(rank == kRoot ? kRanks : 0);
  group->gather(std::span(values), std::span(all), kRoot).wait();
  show("gather: rank 0 has one piece of every rank", all);

  for (float& value : all) value *= 10;
  group->scatter(std::span(all), std::span(values), kRoot).wait();
  show("scatter: every rank has a piece of rank 0's", values);

  all.resize(kRanks);
  group->all_gather(std::span(values), std::span(all)).wait();
  show("all_gather: every rank has all pieces", all);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run(argc, argv, "", [](const examples::Arguments&) { return ddp::spawn(run, kRanks); });
}
