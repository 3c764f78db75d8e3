// The tutorial's ring all-reduce compared with a chunked one, and the drift of replicas under each.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <span>
#include <sstream>
#include <vector>

#include <duet/ddp/init.h>
#include <duet/ddp/launch/launch.h>
#include <duet/ddp/tutorial.h>
#include <duet/lib/random.h>

#include "in_order.h"
#include "program.h"

using namespace duet;

namespace {

constexpr int kRanks = 4;
constexpr std::size_t kParameters = 1000;

using Floats = std::vector<float>;

/// Replaces every rank's gradient by the sum of all.
using AllReduce = void (*)(ddp::ProcessGroup&, Floats&);

void naive(ddp::ProcessGroup& group, Floats& values) {
  // The tutorial declares it allreduce(send, recv) and later calls it with one argument; meant was this.
  Floats sum(values.size());
  ddp::naive_ring_all_reduce(group, values, sum);
  values = sum;
}

void chunked(ddp::ProcessGroup& group, Floats& values) { ddp::chunked_ring_all_reduce(group, values); }

/// How many of this rank's parameters differ from rank 0's.
std::size_t differing(ddp::ProcessGroup& group, const Floats& values) {
  Floats first = values;
  group.broadcast(std::span(first), 0).wait();
  std::size_t count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) count += values[i] != first[i] ? 1 : 0;
  return count;
}

/// Replicas that start equal and always apply the same gradient should stay equal.
void train(ddp::ProcessGroup& group, AllReduce all_reduce, const char* title) {
  if (group.rank() == 0) std::cout << title << std::endl;
  Mt19937 noise(static_cast<std::uint64_t>(group.rank()));  // every rank sees other data
  Floats parameters(kParameters, 1.0f), gradient(kParameters);
  std::ostringstream line;
  line << "Rank  " << group.rank() << " : parameters unlike rank 0's after step";
  for (int step = 1; step <= 100; ++step) {
    noise.uniform(gradient, -1, 1);
    for (std::size_t i = 0; i < kParameters; ++i) gradient[i] += parameters[i];
    all_reduce(group, gradient);
    for (std::size_t i = 0; i < kParameters; ++i) parameters[i] -= 0.01f * gradient[i] / kRanks;
    if (step == 1 || step == 10 || step == 100)
      line << (step == 1 ? " " : ", ") << step << ": " << differing(group, parameters);
  }
  examples::print_in_order(group, line.str());
}

void run(int /*rank*/) {
  const auto group = ddp::init_process_group();
  // Each rank adds in an order of its own, and (a + b) + c is not a + (b + c) in floats.
  train(*group, naive, "the tutorial's ring: every rank sums up everything itself");
  // Each chunk is summed once, as it goes round, and the result is copied. It also sends less: 2 (P - 1) / P times the
  // buffer per rank, instead of P - 1 times.
  train(*group, chunked, "the chunked ring: every sum is made once and copied");
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run(argc, argv, "", [](const examples::Arguments&) { return ddp::spawn(run, kRanks); });
}
