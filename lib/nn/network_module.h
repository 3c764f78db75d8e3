// A network in a shared object, by which programs such as duet run networks that they do not know.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lib/nn/module.h"
#include "lib/tensor.h"

namespace duet::nn {

/// The version of these headers.
inline constexpr char kVersion[] = "0.1.0";

/// A shared object's description of its network. Such an object exports one function, of C linkage, which gives the
/// address of a NetworkModule that is never destroyed:
///
///     extern "C" const duet::nn::NetworkModule* duet_network();
///
/// It is compiled against the headers of the duet that loads it, by a compiler with the same standard library.
struct NetworkModule {
  /// First in every version, so that another version's is recognised.
  const char* version = kVersion;
  /// (channels, rows, columns) of a sample; duet's own data is (1, 28, 28), MNIST, or (3, n, n), colour images. Rows
  /// and columns are what make() gets unless the program's user asks for others.
  Shape sample_shape{};
  std::int64_t classes = 0;              // outputs; 0: as many as the data has
  bool gives_log_probabilities = false;  // trained with nll_loss, else with cross_entropy
  /// Makes one (N, channels, rows, columns) -> (N, classes), without values. May be called several times, by several
  /// threads. What it throws reaches the program's user.
  std::function<std::unique_ptr<Module>(const Shape& sample_shape, std::int64_t classes)> make{};
};

/// The network of a shared object, which is never unloaded. Throws DataError that names the file: no shared object, one
/// without duet_network, or of another version of duet, which is named too; UsageError for a NetworkModule without
/// make() or a shape of three sizes. Running a file's code is trusting it.
const NetworkModule& load_network_module(const std::string& path);

/// The network of a TorchScript file (FILE.pt, of torch.jit.save), for samples of this shape, by the module
/// libduet_torch, which brings LibTorch along; on CPU devices. It has the weights of the file. Throws DataError that
/// names the file, or says why there is no such module, UsageError for a network that does not take such samples.
const NetworkModule& load_script_network(const std::string& path, const Shape& sample_shape);

/// make() with its errors under the file's name: those of duet's family as they are, others as DataError.
std::unique_ptr<Module> make_network(const NetworkModule& network, const std::string& path, const Shape& sample_shape,
                                     std::int64_t classes);

}  // namespace duet::nn
