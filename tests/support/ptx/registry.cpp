#include "tests/support/ptx/registry.h"

#include <cxxabi.h>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/error.h"
#include "tests/support/ptx/interpreter.h"

namespace duet_ptx {
namespace {

/// What an object registered: its fat binary, and its kernels by function and mangled name.
struct FatBinary {
  const unsigned char* data;
  std::vector<std::pair<const void*, std::string>> kernels;
};

std::deque<FatBinary>& binaries() {
  static std::deque<FatBinary> all;
  return all;
}

template <class T>
T read(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// The PTX of the architecture in a fat binary: a header, then entries with headers of their own.
std::string ptx_of(const unsigned char* data) {
  constexpr std::uint32_t kMagic = 0xba55ed50;
  constexpr std::uint16_t kPtx = 1;
  duet::require<duet::DataError>(read<std::uint32_t>(data) == kMagic, "no fat binary");
  const unsigned char* entry = data + read<std::uint16_t>(data + 6);
  const unsigned char* const end = entry + read<std::uint64_t>(data + 8);
  while (entry < end) {
    const auto header = read<std::uint32_t>(entry + 4);
    const auto bytes = static_cast<std::size_t>(read<std::uint64_t>(entry + 8));
    std::string text(reinterpret_cast<const char*>(entry + header), bytes);
    if (read<std::uint16_t>(entry) == kPtx) {
      duet::require<duet::DataError>(text.find(".version") != std::string::npos,
                                     "compressed PTX: nvcc needs --no-compress");
      if (text.find(".target sm_" + architecture() + "\n") != std::string::npos) return text;
    }
    entry += header + bytes;
  }
  throw duet::DataError("no PTX of compute_" + architecture() + " in a fat binary");
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                    &std::free);
  std::string readable = text == nullptr ? name : text.get();
  const std::string unnamed = "(anonymous namespace)::";
  if (const auto at = readable.find(unnamed); at != std::string::npos) readable.erase(0, at + unnamed.size());
  return readable.substr(0, readable.rfind('('));
}

/// nvcc calls the unnamed namespace of loss.cu _GLOBAL__N__<8 digits>_7_loss_cu_<8 digits>.
std::string source_of(const std::string& name) {
  const std::string unnamed = "_GLOBAL__N__";
  const auto end = name.find("_cu_");
  auto begin = name.find(unnamed);
  duet::require<duet::DataError>(begin != std::string::npos && end != std::string::npos, "kernel of no source: ", name);
  begin = name.find('_', name.find('_', begin + unnamed.size()) + 1) + 1;
  return name.substr(begin, end - begin);
}

/// PTX of another compiler, in a folder with a file for each source.
std::string ptx_in(const std::string& folder, const std::string& source) {
  std::ifstream file(folder + "/" + source + ".ptx");
  duet::require<duet::DataError>(file.good(), "cannot read ", folder, "/", source, ".ptx");
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Compilers name unnamed namespaces differently, so that names count as they are in the sources.
const Kernel* find_kernel(const Module& module, const std::string& name) {
  if (const Kernel* const kernel = module.find(name)) return kernel;
  for (const std::string& other : module.names())
    if (demangled(other) == demangled(name)) return module.find(other);
  throw duet::DataError("no PTX of " + name);
}

std::vector<RegisteredKernel> load() {
  static std::deque<Module> modules;
  const char* const folder = std::getenv("DUET_PTX_FOLDER");
  std::vector<RegisteredKernel> all;
  for (const FatBinary& binary : binaries()) {
    if (binary.kernels.empty()) continue;
    const std::string source = source_of(binary.kernels.front().second);
    const Module& module = modules.emplace_back(folder == nullptr ? ptx_of(binary.data) : ptx_in(folder, source));
    for (const auto& [function, name] : binary.kernels)
      all.push_back({function, demangled(name), source, find_kernel(module, name)});
  }
  return all;
}

}  // namespace

const std::string& architecture() {
  static const char* const given = std::getenv("DUET_PTX_ARCH");
  static const std::string number = given == nullptr ? "90" : given;
  return number;
}

std::vector<RegisteredKernel>& registered_kernels() {
  static std::vector<RegisteredKernel> all = load();
  return all;
}

RegisteredKernel& registered_kernel(const void* function) {
  static const std::unordered_map<const void*, RegisteredKernel*> by_function = [] {
    std::unordered_map<const void*, RegisteredKernel*> map;
    for (RegisteredKernel& kernel : registered_kernels()) map[kernel.function] = &kernel;
    return map;
  }();
  const auto found = by_function.find(function);
  duet::require<duet::UsageError>(found != by_function.end(), "launch of what is no kernel");
  return *found->second;
}

std::vector<std::uint8_t> parameter_bytes_of(const Kernel& kernel, void* const* arguments) {
  std::vector<std::uint8_t> bytes(parameter_bytes(kernel));
  for (const Parameter& parameter : parameters(kernel))
    std::memcpy(bytes.data() + parameter.offset, *arguments++, parameter.bytes);
  return bytes;
}

}  // namespace duet_ptx

// What nvcc's objects call when the program starts and ends. Nothing here may throw: the PTX is looked at later.
extern "C" {
void** __cudaRegisterFatBinary(void* wrapper) {
  const unsigned char* data;  // behind a magic number and a version
  std::memcpy(&data, static_cast<const unsigned char*>(wrapper) + 8, sizeof data);
  return reinterpret_cast<void**>(&duet_ptx::binaries().emplace_back(duet_ptx::FatBinary{data, {}}));
}
void __cudaRegisterFunction(void** binary, const char* function, char*, const char* name, int, void*, void*, void*,
                            void*, int*) {
  reinterpret_cast<duet_ptx::FatBinary*>(binary)->kernels.emplace_back(function, name);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

// A kernel's host function launches by these; duet launches by cudaLaunchKernelEx.
[[noreturn]] static void refuse() {
  throw duet::UsageError("kernels are launched by launch() of lib/backend/cuda/launch.h");
}
void __cudaPushCallConfiguration() { refuse(); }
void __cudaPopCallConfiguration() { refuse(); }
void __cudaGetKernel() { refuse(); }
void __cudaLaunchKernel() { refuse(); }
}
