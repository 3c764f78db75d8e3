// A checking interpreter of PTX, the subset that duet's kernels need: no GPU, no driver, no vendor's library.
//
// It runs grids thread by thread, each up to a barrier, a shuffle or its end, in ascending or random order, and checks
// every access to memory, barrier and shuffle. README.md says what is checked and what is not modelled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ptx/memory.h"

namespace duet_ptx {

/// The size of a grid in blocks, or of a block in threads.
struct Extent {
  unsigned x = 1, y = 1, z = 1;
};

/// What was found, by kind, with the first few texts of each.
struct Findings {
  std::map<std::string, std::uint64_t> counts;
  std::vector<std::string> texts;
  void add(const std::string& kind, const std::string& text);
  void clear() { *this = {}; }
};

struct Kernel;

/// Place of a kernel's parameter among the bytes of all.
struct Parameter {
  std::size_t offset, bytes;
};
const std::vector<Parameter>& parameters(const Kernel& kernel);
std::size_t parameter_bytes(const Kernel& kernel);

/// The kernels of one file of PTX.
class Module {
 public:
  /// Throws duet::DataError, with the line, on what is not PTX or not interpreted.
  explicit Module(const std::string& text);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  /// Null where there is no kernel of the name.
  const Kernel* find(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

struct Options {
  /// The seed of the order of threads and blocks; 0: ascending.
  std::uint64_t seed = 0;
  /// False: global addresses are not looked up, because something else guards them.
  bool own_memory = true;
  /// A product and a sum that ptxas may fuse are one fma.
  bool contract = false;
  /// Results of approximate instructions move by up to so many units in the last place, at random.
  int approximate_ulps = 0;
  /// The limit for all threads of a block together; more is an endless loop.
  std::uint64_t most_instructions = 1ULL << 40;
};

struct Statistics {
  std::uint64_t launches = 0, blocks = 0, threads = 0, instructions = 0, global_bytes = 0, barriers = 0, shuffles = 0,
                products = 0;
};

/// Runs a grid. `arguments`: the bytes of all parameters. False when it was given up as endless.
bool run(const Kernel& kernel, Extent grid, Extent block, std::size_t dynamic_shared, const void* arguments,
         Memory& memory, const Options& options, Findings& findings, Statistics& statistics);

/// How many instructions of the kernel ran so far, of how many.
std::pair<std::size_t, std::size_t> covered(const Kernel& kernel);
/// The texts of those that never ran.
std::vector<std::string> not_covered(const Kernel& kernel);
/// How many products ptxas may fuse with a sum or a difference.
std::size_t fusible_products(const Kernel& kernel);

/// A pointer among the parameters' bytes; whole: it is a parameter, not a member of one.
struct PointerParameter {
  std::size_t parameter, offset;
  bool whole;
};
std::vector<PointerParameter> pointer_parameters(const Kernel& kernel);

}  // namespace duet_ptx
