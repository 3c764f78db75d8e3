// SIGBUS, told with the file whose memory failed.
#pragma once

namespace duet::cli {

/// From now on SIGBUS, which still ends the process, is explained on stderr: a file that is mapped into memory, of
/// images or of a network, may have become shorter.
void explain_bus_errors();

}  // namespace duet::cli
