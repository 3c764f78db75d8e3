// Where the ranks of a job meet, as a URL or the launcher's variables say.
#pragma once

#include <string>

#include "ddp/init.h"

namespace duet::ddp {

/// This rank's rendezvous: where, and under which rank.
struct Rendezvous {
  std::string scheme, place;  // of the URL
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

/// The number that a variable or option holds; UsageError names it as `what`.
int number_of(const std::string& text, const std::string& what);

}  // namespace duet::ddp
