// Where the ranks of a job meet, as a URL or the launcher's variables say.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "ddp/init.h"

namespace duet::ddp {

/// This rank's rendezvous: where, and under which rank.
struct Rendezvous {
  /// Parts of the URL. Under env:// `place`, where it is set, names the private folder in which rank 0 publishes its
  /// port.
  std::string scheme, place;
  int rank = -1, world_size = -1;
  std::string host;
  int port = -1;
  int more_ports = 0;     // where the first may be taken
  bool one_host = false;  // the launcher says that all ranks are here
  /// Separates runs at the same place.
  std::string run;
};

/// Reads options.init_method. Throws UsageError (PyTorch's texts).
Rendezvous read_method(const InitOptions& options);

/// Host and port of "HOST:PORT", or of "[::1]:29500"; nothing where there is no port.
std::optional<std::pair<std::string, std::string>> split_endpoint(const std::string& text);

/// The number that a variable or option holds; UsageError names it as `what`.
int number_of(const std::string& text, const std::string& what);

}  // namespace duet::ddp
