// Messages over Gloo, which is a module that is loaded when first needed.
#pragma once

#include <memory>
#include <string>

#include "ddp/group/process_group.h"
#include "ddp/store/store.h"
#include "ddp/transport/transport.h"

namespace duet::ddp {

struct GlooOptions {
  std::string address = "127.0.0.1";  // of this rank, where the others reach it
  Milliseconds connect_timeout{30'000};
  Milliseconds timeout = kGroupTimeout;  // after which a connection without an answer has ended
};

/// Connects this rank with the others, which call this with the same store. Throws CommError when a rank does not come,
/// DeviceError when the module is not there. The process ignores SIGPIPE from then on, unless it has a handler for it.
/// Other libraries of the program may export a Gloo of their own, as PyTorch's wheels do, but not under a sanitizer.
std::unique_ptr<Transport> make_gloo_transport(Store& store, int rank, int size, const GlooOptions& options = {});

/// Empty if Gloo can be used, else why not.
std::string why_no_gloo();

}  // namespace duet::ddp
