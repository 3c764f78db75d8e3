// Errors: their names, the last one of a thread, and those that tests inject.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "tests/support/fake_cuda/sim.h"
#include "tests/support/fake_cuda/simulator.h"

namespace duet_sim {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

struct Failure {
  std::string function;
  long call, code;
  bool onwards;
};
std::mutex failures_mutex;
std::vector<Failure> failures;
std::map<std::string, long> calls;                 // while failures are to be injected
auto& entered = *new std::map<std::string, long>;  // never destroyed: calls come until the very end

/// Failures of the environment, once.
void read_failures() {
  static const bool once = [] {
    if (const char* specification = std::getenv("DUET_SIM_FAIL")) set_failures(specification);
    return true;
  }();
  (void)once;
}

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
#define DUET_SIM_ENTRY(name, value, text) {name, #name, text},
constexpr ErrorText kErrors[] = {DUET_SIM_ERRORS(DUET_SIM_ENTRY)};
#undef DUET_SIM_ENTRY

const ErrorText* find(cudaError_t error) {
  for (const ErrorText& known : kErrors)
    if (known.error == error) return &known;
  return nullptr;
}

}  // namespace

cudaError_t sticky_of(int device) {
  std::lock_guard lock(state().mutex);
  return state().sticky[device];
}

cudaError_t set_last(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void set_failures(const std::string& specification) {
  std::lock_guard lock(failures_mutex);
  failures.clear();
  calls.clear();
  for (std::size_t at = 0; at < specification.size();) {
    const std::size_t end = std::min(specification.find(',', at), specification.size());
    char function[64] = "", plus[2] = "";
    Failure failure{"", 1, 0, false};
    const std::string part = specification.substr(at, end - at);
    if (std::sscanf(part.c_str(), "%63[^:]:%ld%1[+]:%ld", function, &failure.call, plus, &failure.code) < 3)
      std::sscanf(part.c_str(), "%63[^:]:%ld:%ld", function, &failure.call, &failure.code);
    failure.function = function;
    failure.onwards = *plus == '+';
    failures.push_back(failure);
    at = end + 1;
  }
}

int injected(const char* function, int otherwise) {
  read_failures();
  std::lock_guard lock(failures_mutex);
  if (failures.empty()) return 0;
  const long call = ++calls[function];
  for (const Failure& failure : failures)
    if (failure.function == function && (call == failure.call || (failure.onwards && call > failure.call)))
      return failure.code != 0 ? static_cast<int>(failure.code) : otherwise;
  return 0;
}

std::map<std::string, long> take_calls() {
  std::lock_guard lock(failures_mutex);
  return std::exchange(entered, {});
}

cudaError_t enter(const char* function) {
  {
    std::lock_guard lock(failures_mutex);
    ++entered[function];
  }
  const bool memory = std::strcmp(function, "cudaMalloc") == 0 || std::strcmp(function, "cudaMallocHost") == 0;
  if (const int error = injected(function, memory ? cudaErrorMemoryAllocation : cudaErrorUnknown))
    return set_last(static_cast<cudaError_t>(error));
  return set_last(sticky_of(current_device()));
}

}  // namespace duet_sim

using namespace duet_sim;

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = sticky_of(current_device());
  return error;
}
const char* cudaGetErrorName(cudaError_t error) { return find(error) ? find(error)->name : "cudaErrorOfTheSimulator"; }
const char* cudaGetErrorString(cudaError_t error) { return find(error) ? find(error)->text : "unknown error"; }

}  // extern "C"
