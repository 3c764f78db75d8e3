// The options of duet launch.
#pragma once

#include <string>

#include "cli/options/options.h"

namespace CLI {
class App;
}

namespace duet::cli {

void add_launch(CLI::App& app, LaunchOptions& options);

/// Where rank 0 serves the store.
struct Endpoint {
  std::string address = "127.0.0.1";
  int port = 0;  // 0: a free one
};
/// As --rdzv-endpoint, or --master-addr and --master-port, have it. Throws UsageError.
Endpoint endpoint_of(const LaunchOptions& options);

}  // namespace duet::cli
